# A private apt for the scripts in this folder, which source it: a state, lists and a cache of its own, against the mirror
# that this machine's apt is configured with. The machine's packages stay as they are. The sourcing script defines `fail`.
# shellcheck shell=bash

codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")

# Prints "uri suite signed-by" for each binary source of this machine's apt with component main, in either format.
configured_sources() {
    local file
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -e "$file" ] || continue
        awk '$1 == "deb" {
            signed = "-"
            if ($2 ~ /^\[/) {
                options = $0; sub(/\].*/, "", options)
                if (match(options, /signed-by=[^] ]+/)) signed = substr(options, RSTART + 10, RLENGTH - 10)
                sub(/\[[^]]*\] */, "")
            }
            if (/ main( |$)/) print $2, $3, signed
        }' "$file"
    done
    for file in /etc/apt/sources.list.d/*.sources; do
        [ -e "$file" ] || continue
        awk 'function flush(  u, s, i, j, n, m) {
                n = split(uris, u, " "); m = split(suites, s, " ")
                if (types ~ /(^| )deb( |$)/ && enabled != "no" && components ~ /(^| )main( |$)/)
                    for (i = 1; i <= n; i++) for (j = 1; j <= m; j++) print u[i], s[j], signed
                types = uris = suites = components = enabled = ""; signed = "-"
            }
            BEGIN { signed = "-" }
            /^#/ { next }
            /^[ \t]*$/ { flush(); next }
            { key = tolower($1); value = $0; sub(/^[^:]*:[ \t]*/, "", value) }
            key == "types:" { types = value }
            key == "uris:" { uris = value }
            key == "suites:" { suites = value }
            key == "components:" { components = value }
            key == "enabled:" { enabled = value }
            key == "signed-by:" && value != "" { signed = value }
            END { flush() }' "$file"
    done
}

# The mirror, from the entry for this machine's own release.
read -r mirror _ signed < <(configured_sources | awk -v suite="$codename" '$2 == suite { print; exit }') ||
    fail "no Debian mirror is configured for '$codename' (main) under /etc/apt"

# Writes a private apt configuration. Arguments: its folder, the status file, then "uri suite signed-by" lines.
configure() {
    local dir=$1 status=$2
    mkdir -p "$dir"/{state/lists/partial,cache/archives/partial}
    printf '%s\n' "${@:3}" | while read -r uri suite by; do
        if [ "$by" = - ]; then echo "deb $uri $suite main"; else echo "deb [signed-by=$by] $uri $suite main"; fi
    done >"$dir/sources.list"
    # Hooks of the machine's own configuration would touch its caches; proxies and the like are kept.
    cat >"$dir/apt.conf" <<CONF
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
#clear DPkg::Pre-Install-Pkgs;
#clear Acquire::IndexTargets::deb::DEP-11;
Dir::State "$dir/state";
Dir::State::status "$status";
Dir::Cache "$dir/cache";
Dir::Cache::archives "archives/";
Dir::Etc::sourcelist "$dir/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Acquire::Languages "none";
Acquire::Check-Valid-Until "false";
Acquire::Retries "3";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
Debug::NoLocking "true";
CONF
}

update() { timeout 300 apt-get -c "$1/apt.conf" -q -q update || fail "apt-get update of $1 failed"; }
