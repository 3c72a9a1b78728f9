from adjoint.bench.zoo.scales import choose, tokens


def test_a_size_for_each_device() -> None:
    sizes = {"full": 3, "cpu": 2, "tiny": 1}
    assert choose("cuda", False, **sizes) == 3
    assert choose("cpu", False, **sizes) == 2
    assert choose("cuda", True, **sizes) == choose("cpu", True, **sizes) == 1


def test_tokens_are_of_the_vocabulary() -> None:
    text = tokens(7, (100, 10), "cpu")
    assert text.shape == (100, 10)
    assert 0 <= text.min() < text.max() < 7
