# The key of an hour for this job's identity, where none is stored.
if [ -z "$HUD_KEY" ] && [ -n "${ACTIONS_ID_TOKEN_REQUEST_URL:-}" ]; then
    HUD_KEY="$(python3 "$(dirname "${BASH_SOURCE[0]}")/key.py")"
    echo "::add-mask::$HUD_KEY"
    export HUD_KEY
fi
