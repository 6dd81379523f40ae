"""Why a run failed, in a sentence."""

import dagster as dg

_LONGEST = 300
_OF_STEP = dg.DagsterEventType.STEP_FAILURE
_OF_RUN = dg.DagsterEventType.RUN_FAILURE


def why_failed(instance: dg.DagsterInstance, run_id: str) -> str:
    """Returns why a run failed: the error of its step, or otherwise what ended the run."""
    logs = instance.all_logs(run_id, of_type={_OF_STEP, _OF_RUN})
    events = [entry.get_dagster_event() for entry in logs if entry.is_dagster_event]
    for event in events:
        error = event.step_failure_data.error if event.event_type is _OF_STEP else None
        if error is not None:
            # The exception of the step is the cause of Dagster's own error.
            return _sentence((error.cause or error).message)
    told = next((event.message for event in events if event.message), None)
    return _sentence(told or "its process ended without a message, such as by a kill")


def _sentence(message: str) -> str:
    """Returns the first line of an error without the name of its class."""
    line = message.strip().partition("\n")[0]
    kind, colon, rest = line.partition(": ")
    line = rest if colon and rest and kind.replace(".", "").replace("_", "").isalnum() else line
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
