"""Run tests of other files over small partitions: the same must come out."""

from __future__ import annotations

import pytest

from tests.archive.test_months import (
    own_data,
    test_a_digest_tells_what_is_not_what_was_written,
    test_a_month_without_runs_leaves_the_archive_and_its_files_a_day_later,
    test_samples_are_dropped_once_archived_and_stay_in_the_archive,
    test_what_changes_in_a_closed_month_reaches_the_archive,
)
from tests.corrections.test_deletion import (
    test_a_run_in_two_uploads_stays_with_the_other_one,
    test_later_points_are_judged_again_without_the_deleted_ones,
)
from tests.corrections.test_renaming import (
    test_a_run_that_has_both_names_keeps_the_value_of_the_new_one,
    test_two_histories_become_one_and_are_judged_as_one,
)
from tests.corrections.test_streams import test_merged_streams_are_as_if_they_had_always_been_one
from tests.ingest.test_ingest import (
    test_of_the_same_value_in_two_precisions_the_more_precise_one_stays,
    test_shipped_samples_go_in_whole_and_once,
    test_the_database_itself_refuses_nan_and_a_value_missing_without_status,
)
from tests.ingest.test_replace import (
    test_a_correction_supersedes_the_value_of_its_run_and_the_audit_keeps_the_old_one,
    test_a_replacement_that_is_repeated_supersedes_nothing_unless_another_value_came_between,
)
from tests.judging.test_judge import test_a_late_point_judges_its_series_from_there_on
from tests.models.test_distribution import test_each_key_of_a_large_table_says_where_a_row_lies
from tests.points.test_one_number import test_every_reader_of_a_run_shows_one_number
from tests.points.test_write import (
    test_a_rebuild_makes_what_is_missing_and_says_what_differed,
    test_a_single_measurement_is_held_by_its_point_until_another_process_comes,
    test_random_deliveries_deletions_and_corrections_leave_no_other_point,
)
from tests.support.partitions import partition_small

__all__ = [
    "own_data",
    "test_a_correction_supersedes_the_value_of_its_run_and_the_audit_keeps_the_old_one",
    "test_a_digest_tells_what_is_not_what_was_written",
    "test_a_late_point_judges_its_series_from_there_on",
    "test_a_month_without_runs_leaves_the_archive_and_its_files_a_day_later",
    "test_a_rebuild_makes_what_is_missing_and_says_what_differed",
    "test_a_replacement_that_is_repeated_supersedes_nothing_unless_another_value_came_between",
    "test_a_run_in_two_uploads_stays_with_the_other_one",
    "test_a_run_that_has_both_names_keeps_the_value_of_the_new_one",
    "test_a_single_measurement_is_held_by_its_point_until_another_process_comes",
    "test_each_key_of_a_large_table_says_where_a_row_lies",
    "test_every_reader_of_a_run_shows_one_number",
    "test_later_points_are_judged_again_without_the_deleted_ones",
    "test_merged_streams_are_as_if_they_had_always_been_one",
    "test_of_the_same_value_in_two_precisions_the_more_precise_one_stays",
    "test_random_deliveries_deletions_and_corrections_leave_no_other_point",
    "test_samples_are_dropped_once_archived_and_stay_in_the_archive",
    "test_shipped_samples_go_in_whole_and_once",
    "test_the_database_itself_refuses_nan_and_a_value_missing_without_status",
    "test_two_histories_become_one_and_are_judged_as_one",
    "test_what_changes_in_a_closed_month_reaches_the_archive",
]
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _partitioned(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    partition_small(monkeypatch)
