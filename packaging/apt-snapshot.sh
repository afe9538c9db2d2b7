#!/bin/sh
# Within the image: makes apt take Debian's packages as they were at a moment, so that an image can be built again.
#   apt-snapshot MOMENT ARCHIVE      MOMENT: 20251101T000000Z, or "" for as they are today; ARCHIVE: address of an archive of
#                                    Debian's packages by date, as Debian itself runs one
set -eu
moment="${1:-}"
archive="${2:-}"
[ -n "$moment" ] || exit 0
case "$moment" in
  [0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]T[0-9][0-9][0-9][0-9][0-9][0-9]Z) ;;
  *) echo "SNAPSHOT=$moment: give a moment as 20251101T000000Z" >&2; exit 2 ;;
esac
[ -n "$archive" ] || { echo "SNAPSHOT=$moment: SNAPSHOT_ARCHIVE is missing, the address of an archive of Debian's packages by date" >&2; exit 2; }
# shellcheck source=/dev/null
. /etc/os-release
cat >/etc/apt/sources.list.d/debian.sources <<END
Types: deb
URIs: $archive/debian/$moment
Suites: $VERSION_CODENAME $VERSION_CODENAME-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: $archive/debian-security/$moment
Suites: $VERSION_CODENAME-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
# What was signed then has run out by now.
echo 'Acquire::Check-Valid-Until "false";' >/etc/apt/apt.conf.d/10snapshot
