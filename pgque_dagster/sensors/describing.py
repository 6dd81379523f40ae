"""Sentences that the sensors' descriptions share."""

SWITCHING_ON = (
    "Sensors are STOPPED until somebody switches them on: by Running on this page, by `dagster "
    "sensor start`, or by default_status=RUNNING in the code."
)
