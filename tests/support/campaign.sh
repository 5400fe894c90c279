# Sourced by tests that are scripts and take long: what support.h says of campaigns.
# campaign FULL SHORT: prints what to do of the two: all of it, or where TENON_CAMPAIGN=short (so `make check`) a share.
campaign() { if [ "${TENON_CAMPAIGN:-full}" = short ]; then echo "$2"; else echo "$1"; fi; }
# campaign_has I SHARE: whether case I of a list is done: each, or one of SHARE in turns (TENON_TURN).
campaign_has() { [ "${TENON_CAMPAIGN:-full}" != short ] || [ $((($1 + ${TENON_TURN:-0}) % $2)) = 0 ]; }
# campaign_first FIRST N: the first of N seeds; of a share, it is another one in each turn.
campaign_first() { echo $(($1 + $(campaign 0 $((${TENON_TURN:-0} % $2))))); }
