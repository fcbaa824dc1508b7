"""Other packages' words, slips of the pen and misplaced options are answered with the argument that was meant."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import re
from typing import Any

import numpy as np
import pytest

import torchgw
from torchgw import CoarseOptions, GWOptions, SamplingOptions, StoppingOptions, epsilon_path, gw_align, gw_loss
from torchgw.entry import OF_MANY, OURS, PLACES

X, Y = np.zeros((30, 2)), np.zeros((40, 3))

PUBLIC = {name: getattr(torchgw, name) for name in torchgw.__all__ if name not in torchgw.MODULES}


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        *dict.fromkeys(("reg", "eps"), "epsilon").items(),
        *dict.fromkeys(("seed", "rng"), "random_state").items(),
        *dict.fromkeys(("loss_fun", "max_iter", "numItermax", "n_iter", "tol", "k"), "options=GWOptions").items(),
        ("M", "cost"),
        ("metric", "distances"),
        ("C1", "X"),
        ("C2", "Y"),
        ("a", "p"),
        ("b", "q"),
        ("verbose", "callback"),
        ("G0", "init"),
        ("m", "marginals=Partial"),
        *dict.fromkeys(("reg_m", "rho_x", "rho_y"), "marginals=Unbalanced").items(),
        ("init_T", "init"),
        ("cost_fn", "distances"),
        *dict.fromkeys(("n_iters", "maxiter"), r"options=GWOptions\(stopping").items(),
        ("scale", r"options=GWOptions\(spaces=SpaceOptions\(scale="),
        ("max_memory", r"options=GWOptions\(max_memory="),
        ("n_landmarks", r".*SpaceOptions\(n_landmarks=.*, or .*CoarseOptions\(n_landmarks="),
    ],
)
@pytest.mark.parametrize("function", [gw_align, gw_loss, epsilon_path])
def test_other_packages_words_are_answered_with_ours(function: Any, word: str, ours: str) -> None:
    ours = "epsilons" if function is epsilon_path and ours == "epsilon" else ours
    with pytest.raises(TypeError, match=rf"^{function.__name__} has no argument '{word}'; here that is {ours}"):
        function(X, Y, **{word: 1})


@pytest.mark.parametrize("word", ["symmetric", "armijo", "log"])
def test_other_packages_words_without_a_counterpart_are_to_be_left_out(word: str) -> None:
    with pytest.raises(TypeError, match=f"^gw_align has no argument '{word}': .*; leave it out$"):
        gw_align(X, Y, **{word: 1})


def test_what_is_given_by_position_beyond_the_spaces_goes_by_name() -> None:
    masses = np.full(30, 1 / 30), np.full(40, 1 / 40)
    given: Any = gw_align
    with pytest.raises(TypeError, match=r"^gw_align takes X, Y by position, got 4 .*; masses are p= and q=$"):
        given(X, Y, *masses)
    given = torchgw.GromovWasserstein
    with pytest.raises(TypeError, match=r"^GromovWasserstein takes nothing by position, got 1 arguments; .* name"):
        given(X)


@pytest.mark.parametrize(
    ("given", "place"),
    [(StoppingOptions(), "stopping=StoppingOptions"), (CoarseOptions(), "coarse=CoarseOptions"), (3, "sampling=Sampl")],
)
def test_a_group_of_options_is_answered_with_its_place(given: Any, place: str) -> None:
    for call in (gw_align, epsilon_path, lambda X, Y, options: torchgw.estimate(9, 9, options=options)):
        with pytest.raises(TypeError, match=rf"^options must be a GWOptions; .* options=GWOptions\({place}"):
            call(X, Y, options=given)


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("Epsilon", "epsilon"),
        ("n_neighbours", r".*SpaceOptions\(k=\.\.\.\)\)"),
        ("n_anchor", r".*\(n_anchors=\.\.\.\)\)"),
    ],
)
def test_a_slip_of_the_pen_is_answered_with_the_word(word: str, ours: str) -> None:
    with pytest.raises(TypeError, match=rf"^gw_align\(\) got an unexpected .* '{word}'; did you mean {ours}\?$"):
        gw_align(X, Y, **{word: 1})


def test_options_answer_words_of_their_groups_and_slips_of_the_pen() -> None:
    wrong: dict[str, Any] = {"n_anchors": 3}
    with pytest.raises(TypeError, match=r"^GWOptions has no .*; here that is .*\(sampling=SamplingOptions\(n_anchors="):
        GWOptions(**wrong)
    with pytest.raises(TypeError, match=r"^SamplingOptions\(\) got an .* 'n_anchor'; did you mean n_anchors\?$"):
        SamplingOptions(**{"n_anchor": 3})
    assert copy.deepcopy(GWOptions()) == pickle.loads(pickle.dumps(GWOptions())) == GWOptions()


def test_every_place_of_an_option_is_where_it_is() -> None:
    for word, places in PLACES.items():
        for place in places.split(", or "):
            way = re.findall(r"(\w+)=", place)
            value = functools.reduce(getattr, way[1:], GWOptions())
            assert way[-1] == word
            text = place.removeprefix("options=").replace("(...)", "()").replace("...", "value")
            assert eval(text, PUBLIC | {"value": value}) == GWOptions()


@pytest.mark.parametrize("function", [torchgw.gw_pairwise, torchgw.gw_neighbours])
def test_what_solves_many_spaces_answers_with_its_own_words(function: Any) -> None:
    k = "n_neighbours" if function is torchgw.gw_neighbours else r"options=GWOptions\(spaces=SpaceOptions\(k="
    for word, ours in (("Cs", "spaces"), ("p", "masses"), ("metric", "distances"), ("seed", "random_state"), ("k", k)):
        with pytest.raises(TypeError, match=rf"^{function.__name__} has no argument '{word}'; here that is {ours}"):
            function([X, Y], **{word: 1})


def test_the_estimator_answers_other_packages_words_too() -> None:
    for word, ours in (("eps", "epsilon"), ("seed", "random_state"), ("tol", "options=GWOptions")):
        with pytest.raises(TypeError, match=rf"^GromovWasserstein has no argument '{word}'; here that is {ours}"):
            torchgw.GromovWasserstein(**{word: 1})
    with pytest.raises(TypeError, match=r"^GromovWasserstein\(\) got an unexpected keyword argument 'C1'"):
        torchgw.GromovWasserstein(**{"C1": 1})


@pytest.mark.parametrize("function", [gw_align, gw_loss, epsilon_path, torchgw.gw_pairwise, torchgw.gw_neighbours])
def test_words_that_nobody_knows_are_refused_by_the_function_that_was_called(function: Any) -> None:
    words = ("foo", "arguments", "kwargs", *(("C1", "eps", "m") if "pairwise" in function.__module__ else ()))
    for word in words:
        with pytest.raises(TypeError, match=rf"^{function.__name__}\(\) got an unexpected keyword argument '{word}'"):
            function([X, Y], Y, **{word: 1})


@pytest.mark.parametrize("name", [name for name in PUBLIC if inspect.isfunction(PUBLIC[name])])
def test_the_signature_of_a_public_function_fits_a_screen(name: str) -> None:
    """No default is shown with all of its members: options that are left out are None."""
    shown = [str(parameter.default) for parameter in inspect.signature(PUBLIC[name]).parameters.values()]
    assert max(map(len, shown), default=0) < 40


@pytest.mark.parametrize("function", [torchgw.gw_pairwise, torchgw.gw_neighbours])
def test_every_answer_of_what_solves_many_spaces_is_its_argument(function: Any) -> None:
    known = inspect.signature(function).parameters
    for word, ours in OF_MANY.items():
        assert word not in known
        assert ours.partition("=")[0] in known or (ours, function) == ("callback", torchgw.gw_neighbours)


def test_every_answer_to_another_word_is_an_argument_or_an_expression_of_this_package() -> None:
    arguments = inspect.signature(gw_align).parameters
    for word, ours in OURS.items():
        name, _, value = ours.partition("=")
        assert word not in arguments
        assert name in arguments
        if value:
            found = eval(value.replace("...", "7").replace("loss=7", "loss='kl'"), PUBLIC | NAMES)
            assert isinstance(found, GWOptions | torchgw.Unbalanced | torchgw.Partial)


NAMES = {"rho_x": 1.0, "rho_y": 1.0, "mass": 0.5}
