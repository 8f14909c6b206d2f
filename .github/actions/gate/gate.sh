# Upload, gate, summary and comment. Only a regression and wrong usage fail the job.
set -eu
export PYTHONPATH="$GITHUB_ACTION_PATH/../../.."
. "$GITHUB_ACTION_PATH/key.sh"
answer="$(mktemp)"
if [ -n "$FILES" ]; then
    # shellcheck disable=SC2086 # several files and options
    python3 -m runner upload $FILES $PARAMETERS
fi
status=0
# in the background, so that the signal of a cancelled job reaches the gate, which then cancels its runs
# shellcheck disable=SC2086
python3 -m runner gate --base "$BASE" --head "$HEAD" --budget "$BUDGET" $ARGUMENTS >"$answer" &
trap 'kill -TERM $!; wait $!' INT TERM
wait $! || status=$?
echo "status=$status" >>"$GITHUB_OUTPUT"
cat "$answer" >>"$GITHUB_STEP_SUMMARY"
cat "$answer"
if [ -n "$PULL_REQUEST" ] && [ -s "$answer" ]; then
    python3 "$GITHUB_ACTION_PATH/comment.py" "$PULL_REQUEST" "$answer" || echo "::warning::no comment was written"
fi
if [ "$status" = 3 ]; then
    echo "::warning::the gate cannot tell"
    exit 0
fi
exit "$status"
