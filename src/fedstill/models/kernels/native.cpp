// The heavy parts of fedstill/models/kernels/blocks.py for single precision, in one thread.
//
// Compiled on the machine it runs on (fedstill/models/kernels/native.py), for that machine's vector
// instructions. Channels come last and are a multiple of 32. Nothing is allocated here, and the order
// of all sums is fixed, so that the same inputs give the same bits.

#include <cstddef>
#include <cmath>
#include <cstring>

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16, ROWS = 8;
#elif defined(__AVX__)
constexpr int LANES = 8, ROWS = 6;
#elif defined(__aarch64__)
constexpr int LANES = 4, ROWS = 8;
#else
constexpr int LANES = 4, ROWS = 4;
#endif
constexpr int PANEL = 32;                    // channels that a packed panel of weights has
constexpr int VECTORS = PANEL / LANES < 2 ? 1 : 2;  // vectors of channels in one micro-kernel
constexpr int TILE = 4, SIDE = 6, POSITIONS = 36, OUTPUTS = 16;
constexpr float EPSILON = 1e-5f;             // of the norm, PyTorch's default

typedef float Vector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int Mask __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

inline Vector load(const float* p) { return *reinterpret_cast<const Vector*>(p); }
inline void store(float* p, Vector v) { *reinterpret_cast<Vector*>(p) = v; }
inline Vector all(float x) { return Vector{} + x; }
inline Vector where(Mask mask, Vector v) { return reinterpret_cast<Vector>(mask & reinterpret_cast<Mask>(v)); }
// Where the ReLU passes v on: NaN too, as in PyTorch, so that a network that has diverged shows it.
inline Mask passes(Vector v) { return ~(v <= Vector{}); }
inline Vector relu(Vector v) { return where(passes(v), v); }
inline float total(Vector v) {
    float sums[LANES];
    std::memcpy(sums, &v, sizeof sums);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    return sums[0];
}

// Winograd's one-dimensional maps, as in winograd.py.
inline void map_inputs(const Vector* d, Vector* out, int step) {
    out[0] = 4 * d[0] - 5 * d[2] + d[4];
    out[5 * step] = 4 * d[1] - 5 * d[3] + d[5];
    Vector even = d[4] - 4 * d[2], odd = d[3] - 4 * d[1];
    out[1 * step] = even + odd;
    out[2 * step] = even - odd;
    even = d[4] - d[2];
    odd = 2 * (d[3] - d[1]);
    out[3 * step] = even + odd;
    out[4 * step] = even - odd;
}

inline void map_products(const Vector* p, Vector* out, int step) {
    Vector one = p[1] + p[2], two = p[3] + p[4];
    out[0] = p[0] + one + two;
    out[2 * step] = one + 4 * two;
    one = p[1] - p[2];
    two = p[3] - p[4];
    out[1 * step] = one + 2 * two;
    out[3 * step] = p[5] + one + 8 * two;
}

// The 36 values of one tile and some channels, to inputs[position][tile][channels].
inline void tile_inputs(const float* image, ptrdiff_t by_row, int channels, float* inputs,
                        ptrdiff_t by_position) {
    for (int c = 0; c < channels; c += LANES) {
        Vector half[SIDE][SIDE], row[SIDE], out[SIDE];
        for (int j = 0; j < SIDE; ++j) {
            for (int i = 0; i < SIDE; ++i) row[i] = load(image + i * by_row + j * channels + c);
            map_inputs(row, &half[0][j], SIDE);
        }
        for (int i = 0; i < SIDE; ++i) {
            map_inputs(half[i], out, 1);
            for (int j = 0; j < SIDE; ++j) store(inputs + (i * SIDE + j) * by_position + c, out[j]);
        }
    }
}

// products[ROWS][VECTORS * LANES] = inputs[ROWS][channels] @ panel[channels][...]
template <int MANY>
inline void micro(const float* inputs, const float* panel, float* products, int channels) {
    Vector sum[MANY][VECTORS] = {};
    for (int k = 0; k < channels; ++k) {
        Vector weight[VECTORS];
        for (int v = 0; v < VECTORS; ++v) weight[v] = load(panel + k * PANEL + v * LANES);
#pragma GCC unroll 8
        for (int m = 0; m < MANY; ++m) {
            const Vector x = all(inputs[m * channels + k]);
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; ++v) sum[m][v] += x * weight[v];
        }
    }
    for (int m = 0; m < MANY; ++m)
        for (int v = 0; v < VECTORS; ++v) store(products + m * channels + v * LANES, sum[m][v]);
}

// products[tiles][channels] = inputs[tiles][channels] @ weights, packed by panels
void multiply(const float* inputs, const float* weights, float* products, int tiles, int channels) {
    for (int panel = 0; panel < channels; panel += PANEL)
        for (int part = 0; part < PANEL; part += VECTORS * LANES) {
            const float* columns = weights + (ptrdiff_t)panel * channels + part;
            float* out = products + panel + part;
            int m = 0;
            for (; m + ROWS <= tiles; m += ROWS)
                micro<ROWS>(inputs + (ptrdiff_t)m * channels, columns, out + (ptrdiff_t)m * channels, channels);
            for (; m + 2 <= tiles; m += 2)
                micro<2>(inputs + (ptrdiff_t)m * channels, columns, out + (ptrdiff_t)m * channels, channels);
            for (; m < tiles; ++m)
                micro<1>(inputs + (ptrdiff_t)m * channels, columns, out + (ptrdiff_t)m * channels, channels);
        }
}

// Convolution of `images` padded images up to its products: products[position][tile][channels].
void convolve(const float* padded, const float* weights, int images, int height, int width,
              int channels, float* inputs, float* products, ptrdiff_t by_position) {
    const ptrdiff_t by_row = (ptrdiff_t)(width + 2) * channels, by_image = (height + 2) * by_row;
    int tile = 0;
    for (int n = 0; n < images; ++n)
        for (int y = 0; y < height; y += TILE)
            for (int x = 0; x < width; x += TILE, ++tile)
                tile_inputs(padded + n * by_image + y * by_row + (ptrdiff_t)x * channels, by_row, channels,
                            inputs + (ptrdiff_t)tile * channels, by_position);
    for (int p = 0; p < POSITIONS; ++p)
        multiply(inputs + p * by_position, weights + (ptrdiff_t)p * channels * channels,
                 products + p * by_position, tile, channels);
}

inline void tile_outputs(const float* products, ptrdiff_t by_position, Vector out[TILE][TILE]) {
    Vector half[TILE][SIDE], column[SIDE];
    for (int j = 0; j < SIDE; ++j) {
        for (int i = 0; i < SIDE; ++i) column[i] = load(products + (i * SIDE + j) * by_position);
        map_products(column, &half[0][j], SIDE);
    }
    for (int i = 0; i < TILE; ++i) map_products(half[i], out[i], 1);
}

struct Work {  // the caller's memory, of fedstill_work floats
    float *inputs, *products;
    ptrdiff_t by_position;
};

int images_at_once(int height, int width) {
    const int tiles = height * width / OUTPUTS;
    return tiles >= 32 ? 1 : 32 / tiles;
}

Work divide(float* work, int height, int width, int channels) {
    Work parts;
    const int tiles = images_at_once(height, width) * (height * width / OUTPUTS);
    // One more row: positions a power of two apart would share few lines of the first cache.
    parts.by_position = (ptrdiff_t)(tiles + 1) * channels;
    parts.inputs = work;
    parts.products = parts.inputs + POSITIONS * parts.by_position;
    return parts;
}

// fedstill_first_backward of one image. A vector holds outputs here. Two channels are computed at a time,
// so that the sums over outputs stay in registers and those over channels are loaded half as often; some
// outputs at a time, whose patches are copied side by side, so that all stays in the first cache.
template <int INPUTS>
void first_backward(const float* patches, const float* folded, const float* coming, int outputs, int channels,
                    float* direct, float* along) {
    constexpr int PAIR = 2, MOST = 256 / LANES;
    const ptrdiff_t length = 4 * (ptrdiff_t)outputs;
    std::memset(along, 0, sizeof(float) * INPUTS * channels);
    for (ptrdiff_t begin = 0; begin < length;) {
        const int start = begin % outputs, left = (outputs - start) / LANES, many = left < MOST ? left : MOST;
        Vector patch[MOST][INPUTS], found[MOST][INPUTS];
        for (int m = 0; m < many; ++m)
            for (int i = 0; i < INPUTS; ++i) {
                patch[m][i] = load(patches + i * length + begin + m * LANES);
                found[m][i] = Vector{};
            }
        for (int c = 0; c < channels; c += PAIR) {
            float weight[INPUTS + 1][PAIR];
            for (int i = 0; i <= INPUTS; ++i)
                for (int q = 0; q < PAIR; ++q) weight[i][q] = folded[(ptrdiff_t)i * channels + c + q];
            Vector sum[INPUTS][PAIR] = {};
            for (int m = 0; m < many; ++m) {
                Vector z[PAIR], through[PAIR];
                for (int q = 0; q < PAIR; ++q) z[q] = all(weight[INPUTS][q]);
#pragma GCC unroll 27
                for (int i = 0; i < INPUTS; ++i)
                    for (int q = 0; q < PAIR; ++q) z[q] += patch[m][i] * weight[i][q];
                for (int q = 0; q < PAIR; ++q) {
                    const float* given = coming + (ptrdiff_t)(c + q) * outputs + start + m * LANES;
                    through[q] = where(passes(z[q]), load(given));
                }
#pragma GCC unroll 27
                for (int i = 0; i < INPUTS; ++i) {
                    Vector d = found[m][i];
                    for (int q = 0; q < PAIR; ++q) {
                        sum[i][q] += patch[m][i] * through[q];
                        d += weight[i][q] * through[q];
                    }
                    found[m][i] = d;
                }
            }
            for (int i = 0; i < INPUTS; ++i)
                for (int q = 0; q < PAIR; ++q) along[(ptrdiff_t)i * channels + c + q] += total(sum[i][q]);
        }
        for (int m = 0; m < many; ++m)
            for (int i = 0; i < INPUTS; ++i) store(direct + i * length + begin + m * LANES, found[m][i]);
        begin += many * LANES;
    }
}

}  // namespace

extern "C" {

// Floats of memory that the functions on later blocks need.
long fedstill_work(int height, int width, int channels) {
    return 2 * POSITIONS * (long)divide(nullptr, height, width, channels).by_position;
}

int fedstill_images_at_once(int height, int width) { return images_at_once(height, width); }

// The first block: ReLU(patches' @ folded), summed over the four corners of the pooling.
// patches [images, size, 4, outputs], folded [images, size, channels]; the last patch row is ones.
void fedstill_first(const float* patches, const float* folded, int images, int size, int rows, int columns,
                    int channels, float* into, long by_image, long by_row) {
    const ptrdiff_t outputs = (ptrdiff_t)rows * columns;
    for (int n = 0; n < images; ++n, patches += 4 * outputs * size, folded += (ptrdiff_t)size * channels)
        for (int y = 0; y < rows; ++y)
            for (int x = 0; x < columns; ++x) {
                const float* from = patches + y * columns + x;
                float* to = into + n * by_image + y * by_row + (ptrdiff_t)x * channels;
                for (int c = 0; c < channels; c += 2 * LANES) {
                    const float* weight = folded + c;
                    const float* shift = weight + (ptrdiff_t)(size - 1) * channels;
                    Vector sum[4][2];
                    for (int k = 0; k < 4; ++k)
                        for (int v = 0; v < 2; ++v) sum[k][v] = load(shift + v * LANES);
                    for (int i = 0; i < size - 1; ++i) {
                        const Vector w0 = load(weight + (ptrdiff_t)i * channels);
                        const Vector w1 = load(weight + (ptrdiff_t)i * channels + LANES);
#pragma GCC unroll 4
                        for (int k = 0; k < 4; ++k) {
                            const Vector p = all(from[(i * 4 + k) * outputs]);
                            sum[k][0] += p * w0;
                            sum[k][1] += p * w1;
                        }
                    }
                    for (int v = 0; v < 2; ++v)
                        store(to + c + v * LANES, relu(sum[0][v]) + relu(sum[1][v]) +
                                                      (relu(sum[2][v]) + relu(sum[3][v])));
                }
            }
}

// Its gradient up to two sums: direct [images, size - 1, 4, outputs], the gradients that the ReLU lets
// through times the folded weights; along [images, size - 1, channels], the same times the patches.
// coming [images, channels, outputs], outputs a multiple of 16; size 10 or 28.
void fedstill_first_backward(const float* patches, const float* folded, const float* coming, int images,
                             int size, int outputs, int channels, float* direct, float* along) {
    const auto backward = size == 10 ? first_backward<9> : first_backward<27>;
    for (int n = 0; n < images; ++n) {
        backward(patches, folded, coming, outputs, channels, direct, along);
        patches += size * 4 * (ptrdiff_t)outputs;
        folded += (ptrdiff_t)size * channels;
        coming += (ptrdiff_t)channels * outputs;
        direct += (size - 1) * 4 * (ptrdiff_t)outputs;
        along += (ptrdiff_t)(size - 1) * channels;
    }
}

// A later block: convolution, norm, ReLU and pooling of padded images [images, H + 2, W + 2, channels].
// For the gradient, centred [images, channels / LANES, tiles, 16, LANES] and inverse [images, channels]
// are kept; otherwise centred has room for one image. A vector of channels of it fits the first cache.
void fedstill_later(const float* padded, const float* weights, const float* scale, const float* shift,
                    int images, int height, int width, int channels, float* into, long by_image, long by_row,
                    float* centred, float* inverse, int keep, float* work) {
    const Work parts = divide(work, height, width, channels);
    const int at_once = images_at_once(height, width), tiles = height * width / OUTPUTS, across = width / TILE;
    const ptrdiff_t one = (ptrdiff_t)(height + 2) * (width + 2) * channels, whole = (ptrdiff_t)height * width * channels;
    for (int begin = 0; begin < images; begin += at_once) {
        const int many = images - begin < at_once ? images - begin : at_once;
        convolve(padded + begin * one, weights, many, height, width, channels, parts.inputs, parts.products,
                 parts.by_position);
        for (int n = begin; n < begin + many; ++n) {
            for (int c = 0; c < channels; c += LANES) {
                float* x = centred + (keep ? n * whole : 0) + (ptrdiff_t)c * height * width;
                Vector sum = {};
                for (int t = 0; t < tiles; ++t) {
                    Vector out[TILE][TILE];
                    tile_outputs(parts.products + ((ptrdiff_t)(n - begin) * tiles + t) * channels + c,
                                 parts.by_position, out);
                    for (int i = 0; i < OUTPUTS; ++i) {
                        sum += out[i / TILE][i % TILE];
                        store(x + (t * OUTPUTS + i) * LANES, out[i / TILE][i % TILE]);
                    }
                }
                const Vector mean = sum / (float)(height * width);
                Vector square = {};
                for (int i = 0; i < tiles * OUTPUTS; ++i) {
                    const Vector d = load(x + i * LANES) - mean;
                    square += d * d;
                    store(x + i * LANES, d);
                }
                Vector deviation = square / (float)(height * width) + EPSILON;
                for (int lane = 0; lane < LANES; ++lane) deviation[lane] = 1 / std::sqrt(deviation[lane]);
                if (keep) store(inverse + (ptrdiff_t)n * channels + c, deviation);
                const Vector factor = load(scale + c) * deviation, add = load(shift + c);
                for (int t = 0; t < tiles; ++t)
                    for (int q = 0; q < 4; ++q) {
                        const float* corner = x + (t * OUTPUTS + q / 2 * 8 + q % 2 * 2) * LANES;
                        const Vector a = relu(load(corner) * factor + add);
                        const Vector b = relu(load(corner + LANES) * factor + add);
                        const Vector d = relu(load(corner + 4 * LANES) * factor + add);
                        const Vector e = relu(load(corner + 5 * LANES) * factor + add);
                        const int y = t / across * 2 + q / 2, z = t % across * 2 + q % 2;
                        store(into + n * by_image + y * by_row + (ptrdiff_t)z * channels + c, (a + b) + (d + e));
                    }
            }
        }
    }
}

// Its gradient with respect to the inputs [images, H, W, channels], from that of its outputs.
// `padded` has room for images_at_once padded images, with a border of zeros.
void fedstill_later_backward(const float* coming, const float* centred, const float* inverse,
                             const float* weights, const float* scale, const float* shift, int images,
                             int height, int width, int channels, float* into, float* padded, float* work) {
    const Work parts = divide(work, height, width, channels);
    const int at_once = images_at_once(height, width), tiles = height * width / OUTPUTS, across = width / TILE;
    const ptrdiff_t wide = (ptrdiff_t)(width + 2) * channels, one = (height + 2) * wide;
    const ptrdiff_t whole = (ptrdiff_t)height * width * channels, pooled = whole / 4;
    for (int begin = 0; begin < images; begin += at_once) {
        const int many = images - begin < at_once ? images - begin : at_once;
        for (int n = begin; n < begin + many; ++n) {
            float* out = padded + (n - begin) * one + wide + channels;  // the inside
            for (int c = 0; c < channels; c += LANES) {
                const float* x = centred + n * whole + (ptrdiff_t)c * height * width;
                const Vector deviation = load(inverse + (ptrdiff_t)n * channels + c);
                const Vector factor = load(scale + c) * deviation, add = load(shift + c);
                Vector sum = {}, product = {};
                for (int pass = 0; pass < 2; ++pass) {
                    const Vector mean = sum / (float)(height * width);
                    const Vector slope = product / (float)(height * width) * deviation * deviation;
                    for (int t = 0; t < tiles; ++t)
                        for (int i = 0; i < OUTPUTS; ++i) {
                            const int row = t / across * TILE + i / TILE, column = t % across * TILE + i % TILE;
                            const Vector value = load(x + (t * OUTPUTS + i) * LANES);
                            const Vector given = load(coming + n * pooled +
                                                      ((ptrdiff_t)(row / 2) * (width / 2) + column / 2) * channels + c);
                            const Vector through = where(passes(value * factor + add), given);
                            if (pass == 0) {
                                sum += through;
                                product += through * value;
                            } else {
                                store(out + row * wide + (ptrdiff_t)column * channels + c,
                                      factor * (through - mean - value * slope));
                            }
                        }
                }
            }
        }
        convolve(padded, weights, many, height, width, channels, parts.inputs, parts.products, parts.by_position);
        for (int n = begin; n < begin + many; ++n)
            for (int t = 0; t < tiles; ++t)
                for (int c = 0; c < channels; c += LANES) {
                    Vector out[TILE][TILE];
                    tile_outputs(parts.products + ((ptrdiff_t)(n - begin) * tiles + t) * channels + c,
                                 parts.by_position, out);
                    for (int i = 0; i < OUTPUTS; ++i) {
                        const int row = t / across * TILE + i / TILE, column = t % across * TILE + i % TILE;
                        store(into + n * whole + ((ptrdiff_t)row * width + column) * channels + c,
                              out[i / TILE][i % TILE]);
                    }
                }
    }
}

}  // extern "C"
