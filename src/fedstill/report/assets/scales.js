"use strict";
// Numbers as text, and round marks for axes.

const formats = {
  percent: (v) => `${(100 * v).toFixed(100 * v >= 99.95 || Math.abs(v) < 1e-9 ? 0 : 1)}%`,
  exactPercent: (v) => `${(100 * v).toFixed(2)}%`,
  bytes: (v) => {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let unit = 0;
    while (v >= 999.5 && unit < units.length - 1) { v /= 1000; unit += 1; }
    return `${v >= 100 || unit === 0 ? v.toFixed(0) : Number(v.toPrecision(3))} ${units[unit]}`;
  },
  minutes: (v) => {
    if (v === 0) return "0";
    if (v < 1) return `${Number((60 * v).toPrecision(2))} s`;
    if (v < 60) return `${Number(v.toPrecision(3))} min`;
    if (v < 60 * 48) return `${Number((v / 60).toPrecision(3))} h`;
    return `${Number((v / 1440).toPrecision(3))} days`;
  },
  whole: (v) => (Number.isInteger(v) ? v.toLocaleString("en") : v.toFixed(1)),
  number: (v) => {
    const size = Math.abs(v);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return v.toExponential(2);
    return String(Number(v.toPrecision(4)));
  },
};

// About `count` round values that cover [low, high].
function ticks(low, high, count, whole = false) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) {
    found.push(Number((i * step).toPrecision(12)));
  }
  return found;
}

// Round values on a logarithmic axis: powers of ten, and values between them where there is room.
function logTicks(low, high, count) {
  const marks = (within) => {
    const found = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p += 1) {
      for (const m of within) {
        const v = m * 10 ** p;
        if (v >= low * 0.999 && v <= high * 1.001) found.push(v);
      }
    }
    return found;
  };
  const fitting = [[1, 2, 5], [1, 3], [1]].map(marks).find((found) => found.length <= count);
  if (fitting && fitting.length > 1) return fitting;
  const found = marks([1, 2, 5]);
  const every = Math.ceil(found.length / Math.max(1, count));
  return found.filter((_, i) => i % every === 0);
}

const clamp = (v, low, high) => Math.min(high, Math.max(low, v));
