#!/bin/sh
# Within the image: makes apt take Debian's packages as they were at a moment, so that an image can be built again.
#   apt-snapshot MOMENT ARCHIVE      MOMENT: 20251101T000000Z; ARCHIVE: address of an archive of Debian's packages by date, as
#                                    Debian itself runs one, or "" for the packages of today
set -eu
moment="${1:-}"
archive="${2:-}"
if [ -z "$archive" ]; then
  echo "no SNAPSHOT_ARCHIVE: Debian's packages are those of today, and another build may get others" >&2
  exit 0
fi
case "$moment" in
  [0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]T[0-9][0-9][0-9][0-9][0-9][0-9]Z) ;;
  *) echo "SNAPSHOT=$moment: give a moment as 20251101T000000Z" >&2; exit 2 ;;
esac
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
