import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedstill.models import MLP
from fedstill.records import Records, Split
from fedstill.rng import Rng
from fedstill.scaling import Scaling
from fedstill.steps.scores import Scores, calibration_error, per_class_accuracy, score
from fedstill.types import Task


def test_calibration_error_by_hand() -> None:
    # Two bins of width 1/2: (0.4, 0.5) with one right, (0.9, 0.7) with both right.
    confidence = torch.tensor([0.4, 0.5, 0.9, 0.7])
    right = torch.tensor([True, False, True, True])
    first = abs(1 / 2 - 0.45)
    second = abs(2 / 2 - 0.8)
    assert abs(calibration_error(confidence, right, bins=2) - (first + second) / 2) < 1e-7


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.floats(0.001, 1), st.booleans()), min_size=1, max_size=40))
def test_calibration_error_is_the_slow_loop_s(records: list[tuple[float, bool]]) -> None:
    confidence = torch.tensor([c for c, _ in records], dtype=torch.float64)
    right = torch.tensor([r for _, r in records])
    total = 0.0
    for number in range(15):
        low, high = number, number + 1
        inside = [(c, r) for c, r in zip(confidence.tolist(), right.tolist(), strict=True)
                  if low < c * 15 <= high]  # fmt: skip
        if inside:
            accuracy = sum(r for _, r in inside) / len(inside)
            mean = sum(c for c, _ in inside) / len(inside)
            total += len(inside) / len(records) * abs(accuracy - mean)
    assert abs(calibration_error(confidence, right) - total) < 1e-9


def test_a_class_without_records_has_no_accuracy() -> None:
    right = torch.tensor([True, False, True])
    assert per_class_accuracy(right, torch.tensor([0, 0, 2]), 4) == (0.5, None, 1.0, None)


def test_scores_count_and_average() -> None:
    inputs = torch.randn(37, 5, generator=Rng(0).torch())
    labels = torch.arange(37) % 3
    records = Records(Split(inputs, labels), torch.arange(37), Scaling((), ()))
    model = MLP((5,), 3, width=4)
    task = Task(model, (5,), 3, 1, 1, Scaling((), ()))
    params = model.init(Rng(1).torch())
    scores = score(task, params, records)
    logits = model.apply(params, inputs)
    accuracy = float((logits.argmax(1) == labels).double().mean())
    loss = float(torch.nn.functional.cross_entropy(logits, labels))
    assert abs(scores.accuracy - accuracy) < 1e-9
    assert abs(scores.loss - loss) < 1e-5
    confidence = logits.softmax(1).amax(1)
    right = logits.argmax(1) == labels
    assert scores.calibration_error == calibration_error(confidence, right)
    weighted = sum((s or 0) * int((labels == c).sum()) for c, s in enumerate(scores.per_class))
    assert abs(weighted / 37 - accuracy) < 1e-9


def test_confusion_is_counted_record_by_record() -> None:
    labels, predicted = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 1, 1, 2, 0, 2])
    right = (labels == predicted).double()
    scores = Scores(0.0, right, 4, labels=labels, predicted=predicted)
    expected = torch.zeros(4, 4, dtype=torch.long)
    for label, chosen in zip(labels.tolist(), predicted.tolist(), strict=True):
        expected[label, chosen] += 1
    assert scores.confusion is not None
    assert scores.confusion.equal(expected)
    assert Scores(0.0, right, 4).confusion is None
