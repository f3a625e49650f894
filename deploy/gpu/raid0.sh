#!/usr/bin/env bash
# Makes one RAID-0 file system of local SSDs and mounts it. What is on them is lost; a stopped machine loses it, too.
#
#   sudo deploy/gpu/raid0.sh [--dry-run] MOUNT DEVICE...
#   sudo deploy/gpu/raid0.sh /data /dev/disk/by-id/google-local-nvme-ssd-*
#
# Devices are named, never searched for: on newer machines the boot disk is NVMe as well. One that holds a file
# system, a partition or part of an array is refused. Nothing is done where MOUNT is mounted already.
set -euo pipefail

fail() { echo "raid0.sh: $1" >&2; exit 2; }
dry_run=0
if [[ "${1:-}" == --dry-run ]]; then
  dry_run=1
  shift
fi
(($# >= 2)) || fail "expected MOUNT DEVICE..., received ${*:-nothing}"
mount_point="$1"
shift
array=/dev/md0

run() {
  echo "+ $*"
  ((dry_run)) || "$@"
}

if mountpoint -q "$mount_point"; then
  echo "$mount_point is mounted already"
  exit 0
fi
for device in "$@"; do
  [[ -e "$device" ]] || fail "there is no $device"
  held="$(lsblk --noheadings --output FSTYPE,PARTTYPE,MOUNTPOINT "$device" | tr -d '[:space:]')"
  [[ -z "$held" ]] || fail "$device is in use or holds something: $held"
done
if (($# > 1)); then
  [[ ! -e "$array" ]] || fail "there is an array $array already"
  run mdadm --create "$array" --run --level=0 --raid-devices=$# "$@"
else
  array="$1"
fi
run mkfs.ext4 -F "$array"
run mkdir -p "$mount_point"
run mount "$array" "$mount_point"
run chmod a+w "$mount_point"
