"""A controller that sees the state of robot push: go round the cube, then push it towards the goal."""

import numpy as np

from softaug.envs.robot_push.task import MAX_DISPLACEMENT, WORKSPACE_HIGH, WORKSPACE_LOW

CLEAR = 0.095  # between tip and cube's center: any side of the cube passes
BEHIND = 0.075  # from where a push begins


def controller_action(tip, cube, goal):
    """tip (3,), cube (3,), goal (2,) in metres -> action (2,) in [-1, 1]."""
    tip, cube = tip[:2], cube[:2]
    way = goal - cube
    distance = np.linalg.norm(way)
    if distance < 0.012:
        return np.zeros(2)
    way = way / distance
    from_cube = tip - cube
    along, aside = from_cube @ way, from_cube @ np.array([-way[1], way[0]])
    if along < -0.03 and abs(aside) < 0.02 + 0.25 * max(0.0, -along - BEHIND):
        # Behind the cube: push. Steer against the side on which the tip has slipped.
        target = tip + way * min(
            distance + (-along - BEHIND if -along > BEHIND else 0) + 0.012, MAX_DISPLACEMENT
        )
        target = target - 0.8 * aside * np.array([-way[1], way[0]])
    else:
        # Round the cube at a distance, towards the point behind it.
        angle = np.arctan2(aside, -along)  # 0: straight behind
        if abs(angle) < 0.6:
            target = cube - way * BEHIND
            if np.linalg.norm(from_cube) < 0.065:
                target = tip + from_cube / np.linalg.norm(from_cube) * 0.03
        else:
            turn = min(abs(angle), 0.45)
            side = np.array([-way[1], way[0]])
            new = angle - np.sign(angle) * turn
            target = cube + CLEAR * (-np.cos(new) * way + np.sin(new) * side)
    target = np.clip(target, WORKSPACE_LOW[:2], WORKSPACE_HIGH[:2])
    return np.clip((target - tip) / MAX_DISPLACEMENT, -1, 1)
