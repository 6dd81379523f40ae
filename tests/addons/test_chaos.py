"""Workers of add-ons are killed and stopped, sessions end, the server dies, halves rotate: each
message, and each entry in its order, counts once for each consumer.
"""

from types import ModuleType

import pytest

from tests.addons.conftest import addon_sql
from tests.support import message_chaos, serial_chaos
from tests.support.addon_chaos import perform

each_play = pytest.mark.parametrize("play", [message_chaos, serial_chaos], ids=lambda it: it.ADDON)


@each_play
def test_each_committed_message_counts_once(play: ModuleType) -> None:
    perform(play, addon_sql(play.ADDON), cuts=10)


@pytest.mark.slow
@each_play
def test_each_committed_message_counts_once_for_minutes(play: ModuleType) -> None:
    perform(play, addon_sql(play.ADDON), cuts=400)
