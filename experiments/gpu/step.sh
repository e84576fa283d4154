# `bash step.sh ARGUMENTS` runs `python ARGUMENTS` as one step of a list that is worked off in pieces
# (next.sh). A step that was done before is skipped, and one that failed, until its line in failed.txt
# is removed. At PIECE_END, in seconds since 1970, the program gets a SIGTERM, with which train.py
# saves its checkpoint; the step then continues in the next piece. The status 255 ends xargs.
grep -qxF -- "$*" "$PIECES/done.txt" 2> /dev/null && exit 0
grep -qxF -- "$*" "$PIECES/failed.txt" 2> /dev/null && exit 1
left=$((PIECE_END - $(date +%s)))
[ "$left" -gt 20 ] || exit 255
# --foreground: only the program gets the signal, and only once; a second one would stop the saving
timeout --foreground --kill-after=60 "$left" python "$@"
case $? in
    0) echo "$*" >> "$PIECES/done.txt" ;;
    124 | 137) exit 255 ;;
    *) echo "$*" >> "$PIECES/failed.txt"; exit 1 ;;
esac
