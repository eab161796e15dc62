"""Optuna's storages as a study here needs them: trials are asked for, never made on the way."""

from __future__ import annotations

from typing import Any

from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalRedisBackend
from optuna.trial import FrozenTrial
from sqlalchemy import event

from ablations.tuning.study import GRACE_S, retry
from reproduce.errors import BadInput
from reproduce.provenance import without_passwords
from reproduce.tracking import results_folder

HEARTBEAT_S = 30
BUSY_S = 120
"""How long to wait for others' writes to a SQLite file"""


class NothingWaiting(Exception):
    """No trial is waiting: all that were asked for are taken."""


# A trial begins as a waiting one; where none is left Optuna would make one, in these methods. The
# first is what the cache that it puts before a database calls.


class _Database(RDBStorage):
    def _create_new_trial(
        self, study_id: int, template_trial: FrozenTrial | None = None
    ) -> FrozenTrial:
        if template_trial is None:
            raise NothingWaiting
        return super()._create_new_trial(study_id, template_trial)


class _Journal(JournalStorage):
    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        if template_trial is None:
            raise NothingWaiting
        return super().create_new_trial(study_id, template_trial)


def default_storage() -> str:
    return f"sqlite:///{results_folder().resolve() / 'tuning.db'}"


def connect(url: str) -> BaseStorage:
    """The storage at a URL of SQLAlchemy's or of Redis; a bare path is a journal file.

    Its tables are made if need be: to be called by one process at a time.

    Raises:
        BadInput: there is none and none can be made.
    """
    try:
        if "://" not in url:
            return _Journal(JournalFileBackend(url))
        if url.startswith("redis"):
            return _Journal(JournalRedisBackend(url))
        return _database(url)
    except Exception as error:  # SQLAlchemy's, a driver's or the file system's
        first = without_passwords(str(error).strip().split("\n")[0])
        raise BadInput(
            f"--storage {without_passwords(url)}: {first}; give a path, or a URL that Optuna knows"
        ) from error


def _database(url: str) -> RDBStorage:
    sqlite = url.startswith("sqlite")
    storage = _Database(
        url,
        engine_kwargs={"connect_args": {"timeout": BUSY_S}} if sqlite else None,
        heartbeat_interval=HEARTBEAT_S,
        grace_period=GRACE_S,
        heartbeat_stale_trial_callback=retry,
    )
    if sqlite:
        # SQLite has no row locks. Unless a transaction locks the file from its first read on, two
        # processes may both find a trial waiting, and both take it.
        storage.engine.dispose()
        event.listen(storage.engine, "connect", _no_transaction_of_its_own)
        event.listen(storage.engine, "begin", _begin_locked)
    return storage


def _no_transaction_of_its_own(connection: Any, record: Any) -> None:
    connection.isolation_level = None


def _begin_locked(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
