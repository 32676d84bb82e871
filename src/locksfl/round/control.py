"""Control variates: clients correct their updates by values of earlier rounds.

Each is one file of functions: anchor.py (SVRG) and scaffold.py. A round with one differs from any
other in four places, which are the functions of `Control`. What is released, and so what is
charged, stays one clipped vector for each upload.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from locksfl.arm import Arm
from locksfl.methods.dials import Dials
from locksfl.round import anchor, scaffold
from locksfl.round.client import LocalWork
from locksfl.round.server import Server, ServerState


@dataclass(frozen=True)
class Control:
    """What a control variate does in a round.

    update: the kind of local work that it corrects.
    first(work, weights, clients): its state before the first round.
    updates(asked, state, chunk, clients): u_i of a chunk of clients.
    after(work, state, t, weights, released, dials, sent): what the server steps with, from what
        was released, and the state after the round. `sent` is only for a control that `keeps`.
    dials_of(work, dials, t): the numbers of round t.
    problem(work): why this work cannot be controlled, or None.
    keeps: every client keeps a vector of its own.
    one_clip: the clip norm of all rounds is the arm's.
    """

    update: str
    first: Callable[[LocalWork, Array, int], Any]
    updates: Callable[..., Array]
    after: Callable[..., tuple[Array, Any]]
    dials_of: Callable[[LocalWork, Dials, Array], Dials] = lambda work, dials, t: dials
    problem: Callable[[LocalWork], str | None] = lambda work: None
    keeps: bool = False
    one_clip: bool = True


CONTROLS = {
    "anchor": Control(
        "gradient",
        anchor.first,
        anchor.updates,
        anchor.after,
        dials_of=anchor.dials_of,
        one_clip=False,
    ),
    "scaffold": Control(
        "epochs",
        scaffold.first,
        scaffold.updates,
        scaffold.after,
        problem=scaffold.problem,
        keeps=True,
    ),
}


def control_of(work: LocalWork) -> Control | None:
    """The control variate of some local work, if it has one."""
    return None if work.control is None else CONTROLS[work.control]


def first_state(
    server: Server, weights: Array, arm: Arm, work: LocalWork, clip_norm: Any = None
) -> ServerState:
    """The state before an arm's first round: with a clip norm if that adapts, the last update if
    the rule asks about it, the noise of the rounds before if that is correlated, and the state of a
    control variate; the first clip norm is the arm's if it is not given."""
    if arm.clip_quantile is not None and clip_norm is None:
        clip_norm = arm.clip_norm
    earlier, control = len(arm.strategy) - 1, control_of(work)
    return server.init(weights)._replace(
        clip_norm=None if clip_norm is None else jnp.asarray(clip_norm, jnp.float32),
        last=jnp.zeros_like(weights) if arm.parts.rule.remembers else None,
        recent_noise=jnp.zeros((earlier, *weights.shape)) if earlier > 0 else None,
        control=None if control is None else control.first(work, weights, arm.clients),
    )


def check_work(work: LocalWork) -> None:
    """Refuse a control variate that does not go with the rest of the local work."""
    control = control_of(work)
    if control is None:
        return
    problem = control.problem(work)
    if work.update != control.update:
        problem = f"only with local.update = {control.update!r}, not {work.update!r}"
    if problem is not None:
        raise ValueError(f"local.control = {work.control!r}: {problem}")


def check_arm(work: LocalWork, arm: Arm) -> None:
    """Refuse a control variate with an arm whose releases are not averages of one scale."""
    check_work(work)
    control = control_of(work)
    if control is None:
        return
    problems = {
        "clip_quantile, whose bits would be of updates of several kinds": arm.clip_quantile,
        "lengths = 'equal', which leaves no average to correct by": arm.lengths == "equal",
        "a federation, whose devices keep nothing from round to round": arm.dropouts,
        f"bands = {arm.bands}: correlated noise is charged in units of one clip norm, and its "
        "rounds have two; expected bands = 1": arm.bands > 1 and not control.one_clip,
    }
    for problem, there in problems.items():
        if there:
            raise ValueError(
                f"local.control = {work.control!r}: not with {problem} (arm {arm.name!r})"
            )
