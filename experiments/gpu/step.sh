# `bash step.sh ARGUMENTS` runs `python ARGUMENTS` as one step of a list that is worked off in pieces
# (next.sh). A step that was done before is skipped. At PIECE_END, in seconds since 1970, it gets a
# SIGTERM, with which train.py saves its checkpoint; the same step then continues in the next piece.
# The status 255 ends xargs, and with it the piece.
grep -qxF -- "$*" "$PIECES/done.txt" 2> /dev/null && exit 0
left=$((PIECE_END - $(date +%s)))
[ "$left" -gt 20 ] || exit 255
# --foreground: only the program gets the signal, and only once; a second one would stop the saving
timeout --foreground --kill-after=60 "$left" python "$@"
status=$?
case $status in
    0) echo "$*" >> "$PIECES/done.txt" ;;
    124 | 137) exit 255 ;;
    *) echo "status $status: python $*" | tee -a "$PIECES/failed.txt" >&2; exit 1 ;;
esac
