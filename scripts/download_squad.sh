#!/usr/bin/env bash
# Downloads SQuAD v1.1 and v2.0 into a folder: ./scripts/download_squad.sh DIR
# What is there and whole is not fetched again; what broke off goes on where it stopped.
set -euo pipefail

readonly url="https://rajpurkar.github.io/SQuAD-explorer/dataset"
readonly files="
3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955 train-v1.1.json
95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9 dev-v1.1.json
68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002 train-v2.0.json
80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8 dev-v2.0.json
"

fail() {
  echo "download_squad.sh: $*" >&2
  exit 2
}

# is_right SHA256 FILE
is_right() {
  [[ "$(sha256sum "$2" | cut -d ' ' -f 1)" == "$1" ]]
}

# fetch SHA256 NAME
fetch() {
  local target="$folder/$2" part="$folder/$2.part" error
  if [[ -e "$target" ]]; then
    is_right "$1" "$target" || fail "$target is not the published file (its sha256 is another). Move it away and start again."
    echo "$2: there already"
    return
  fi
  if ! { [[ -f "$part" ]] && is_right "$1" "$part"; }; then
    error="$(curl --fail --location --silent --show-error --retry 3 --connect-timeout 30 --continue-at - --output "$part" "$url/$2" 2>&1)" ||
      fail "$url/$2 cannot be downloaded: ${error##*$'\n'}. Start again to go on, or copy the file to $target."
    is_right "$1" "$part" || { rm -f "$part"; fail "$url/$2 is not the published file (its sha256 is another). Start again."; }
  fi
  mv "$part" "$target"
  echo "$2: downloaded"
}

[[ $# -eq 1 && "$1" != -* ]] || fail "usage: $0 DIR"
command -v curl >/dev/null || fail "curl is needed. Install it, or copy the files of $url to $1."
folder="$1"
mkdir -p "$folder" 2>/dev/null || fail "$folder cannot be made."
[[ -w "$folder" ]] || fail "$folder cannot be written to."
while read -r sha256 name; do
  if [[ -n "$sha256" ]]; then
    fetch "$sha256" "$name"
  fi
done <<<"$files"
