#!/usr/bin/env bash
# orbax saves nothing after a rollback, until the old last step; a restart takes the diverged run
# Versions: orbax-checkpoint 0.12.8, jax 0.10.2, jaxlib 0.10.2 (CPU; the weight is negative in the run that diverged).
# Guess: after restore(100), save(150) writes a checkpoint, and the next start resumes from it.
# True: CheckpointManager.should_save is False for each step up to the last one in the folder, and save returns False,
#   without a warning. So a run that goes back to step 100 of 300 because its loss diverged saves nothing before 300. If it
#   stops before, or was meant to be shorter, latest_step() is 300: the new process goes on with the diverged weights, and
#   the good ones are lost. The same holds for a new run in a used folder. Delete the later steps first.
# Hurt: trainings that go back after a spike of the loss, reruns with a changed learning rate or data, branches for a decay.
# Output seen:
#   first run: saved {100: True, 200: True, 300: True}
#   back to step 100, weight 1.0: saved {150: False, 200: False, 250: False, 300: False}
#   steps [100, 200, 300], next start: step 300, weight -3.0
#   with delete(200) and delete(300) first: saved {150: True, 200: True, 250: True, 300: True}
#   steps [100, 150, 200, 250, 300], next start: step 300, weight 3.0
. "$(dirname "$0")/common.sh"
venv orbax-checkpoint==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6

JAX_PLATFORMS=cpu "$python" - "$work" <<'PY'
import sys
import jax.numpy as jnp
import orbax.checkpoint as ocp

def run(folder, steps, sign, delete=()):
    with ocp.CheckpointManager(folder) as manager:
        for step in delete:
            manager.delete(step)
        saved = {}
        for step in steps:
            weight = jnp.full(1, sign * step / 100 if step > 100 else 1.0)
            saved[step] = manager.save(step, args=ocp.args.StandardSave({"weight": weight}))
        manager.wait_until_finished()
    return saved

def weight(folder, step=None):
    with ocp.CheckpointManager(folder) as manager:
        step = step or manager.latest_step()
        restored = manager.restore(step, args=ocp.args.StandardRestore())
        return sorted(manager.all_steps()), step, float(restored["weight"][0])

seen = []
for name, delete in (("back", ()), ("deleted", (200, 300))):
    folder = f"{sys.argv[1]}/{name}"
    first = run(folder, (100, 200, 300), -1)
    _, _, start = weight(folder, 100)
    saved = run(folder, (150, 200, 250, 300), 1, delete)
    seen.append((saved, *weight(folder)))
    if not delete:
        print(f"first run: saved {first}\nback to step 100, weight {start}: saved {saved}")
    else:
        print(f"with delete(200) and delete(300) first: saved {saved}")
    print(f"steps {seen[-1][1]}, next start: step {seen[-1][2]}, weight {seen[-1][3]}")
assert all(first.values()) and not any(seen[0][0].values()) and seen[0][2:] == (300, -3)
assert all(seen[1][0].values()) and seen[1][2:] == (300, 3)
PY
