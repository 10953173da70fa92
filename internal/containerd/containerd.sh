#!/bin/sh
# A containerd of its own, for trying and testing Berth's node: own root, state, socket, network and images, all below one folder.
# Whatever it makes, it removes when it ends. Nothing is pulled: the images hold the machine's own static busybox.
set -eu

usage() {
	cat <<'END'
usage: containerd.sh install          get what is missing: containerd, runc, a static busybox, CNI plugins (Debian, Ubuntu)
       containerd.sh run DIR          run containerd in the foreground, its socket is DIR/containerd.sock; Ctrl-C ends it
       containerd.sh run DIR --owned  the same; it also ends when its standard input ends, that is, with whoever started it
       containerd.sh clean DIR        remove what a killed one left: processes, mounts, network, cgroups, the folder
END
	exit 2
}

say() { echo "containerd.sh: $*" >&2; }
die() { say "$*"; exit 1; }

missing() {
	for tool in containerd ctr runc ip flock pgrep; do command -v "$tool" >/dev/null || echo "$tool"; done
	[ -x /usr/lib/cni/bridge ] || echo containernetworking-plugins
	static_busybox || echo busybox-static
}

# A busybox that needs shared libraries does not start in an empty root.
static_busybox() {
	[ -x /bin/busybox ] || return 1
	empty=$(mktemp -d)
	cp /bin/busybox "$empty/busybox"
	code=0; chroot "$empty" /busybox true 2>/dev/null || code=1
	rm -rf "$empty"
	return $code
}

install() {
	[ -n "$(missing)" ] || return 0
	[ "${BERTH_INSTALL-}" != no ] || die "not found: $(missing | tr '\n' ' '): install them, or unset BERTH_INSTALL=no"
	command -v apt-get >/dev/null || die "not found: $(missing | tr '\n' ' '): install them (there is no apt-get here)"
	export DEBIAN_FRONTEND=noninteractive
	packages="containerd runc busybox-static containernetworking-plugins iproute2 iptables procps util-linux"
	get="apt-get -q -y -o DPkg::Lock::Timeout=300 --no-install-recommends install $packages"
	$get >&2 || { apt-get -q -o DPkg::Lock::Timeout=300 update >&2; $get >&2; }
	[ -z "$(missing)" ] || die "still not found: $(missing | tr '\n' ' ')"
}

# image NAME TAR COMMAND...: an image archive (as `docker save` writes it) with busybox and its applets, running COMMAND.
image() {
	name=$1; tar=$2; shift 2
	work=$dir/image; rootfs=$work/rootfs
	mkdir -p "$rootfs/bin" "$rootfs/etc" "$rootfs/root" "$rootfs/home" "$rootfs/var" "$rootfs/tmp" "$rootfs/proc" "$rootfs/sys" "$rootfs/dev"
	chmod 1777 "$rootfs/tmp"
	for applet in $(/bin/busybox --list); do ln -sf busybox "$rootfs/bin/$applet"; done
	cp --remove-destination /bin/busybox "$rootfs/bin/busybox" # it lists itself among its applets
	echo 'root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/:/bin/false' >"$rootfs/etc/passwd"
	echo 'root:x:0:
nogroup:x:65534:' >"$rootfs/etc/group"
	tar -C "$rootfs" --sort=name --owner=0 --group=0 --mtime=@0 -cf "$work/layer.tar" .
	layer=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
	command=$(printf ',"%s"' "$@")
	case $(uname -m) in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) arch=$(uname -m) ;; esac
	cat >"$work/config.json" <<END
{"architecture":"$arch","os":"linux","created":"1970-01-01T00:00:00Z",
 "config":{"Env":["PATH=/bin"],"WorkingDir":"/","Cmd":[${command#,}]},"rootfs":{"type":"layers","diff_ids":["sha256:$layer"]}}
END
	echo "[{\"Config\":\"config.json\",\"RepoTags\":[\"$name\"],\"Layers\":[\"layer.tar\"]}]" >"$work/manifest.json"
	tar -C "$work" -cf "$tar" manifest.json config.json layer.tar
	rm -rf "$work"
}

# A /24 that no interface of this machine has; $RANDOM is not in every sh.
free_subnet() {
	for try in $(od -An -N64 -tu1 /dev/urandom); do
		for other in $(od -An -N1 -tu1 /dev/urandom); do
			candidate=10.$((128 + try % 120)).$other
			ip -4 -o addr | grep -qF " $candidate." || { echo "$candidate"; return; }
		done
	done
	die "no free subnet below 10.128.0.0/9"
}

# The bridge is made here, not by the plugin: as a gateway the plugin would switch on forwarding for the whole machine and leave it on.
# Pods reach each other and this machine, and are reached from it; there is no masquerading, so nothing beyond.
network() {
	subnet=$(free_subnet)
	ip link add "$bridge" address "$(printf '0a:be:%02x:%02x:%02x:01' $(od -An -N3 -tu1 /dev/urandom))" type bridge
	ip addr add "$subnet.1/24" dev "$bridge"
	ip link set "$bridge" up
	mkdir -p "$dir/net.d"
	cat >"$dir/net.d/10-$bridge.conflist" <<END
{"cniVersion": "0.4.0", "name": "$bridge", "plugins": [
  {"type": "bridge", "bridge": "$bridge", "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$subnet.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "$dir/ipam"}},
  {"type": "portmap", "capabilities": {"portMappings": true}, "snat": false}]}
END
}

runtime() { cat <<END
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.$1]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.$1.options]
        SystemdCgroup = false
        Root = "$dir/state/runc"
END
}

# Mirrors of registries can be named in DIR/certs.d (REGISTRY/hosts.toml), also while it runs.
# kata-fc is the handler of the documentation's example of pod overhead, test-handler that of upstream's specs; runc stands in for both.
configure() {
	snapshotter=overlayfs
	grep -qw overlay /proc/filesystems || snapshotter=native
	# Without CAP_SYS_RESOURCE (root in some sandboxes) no process can be kept from the OOM killer; runc would fail instead of going without.
	restrict=false
	(echo -998 >/proc/self/oom_score_adj) 2>/dev/null || restrict=true
	cat >"$dir/config.toml" <<END
version = 2
root = "$dir/root"
state = "$dir/state"
[grpc]
  address = "$socket"
[plugins."io.containerd.internal.v1.opt"]
  path = "$dir/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "berth.local/pause:1"
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = $restrict
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "$dir/certs.d"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$dir/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "$snapshotter"
$(runtime runc)
$(runtime kata-fc)
$(runtime test-handler)
END
}

ready() { ctr --address "$socket" --connect-timeout 2s version >/dev/null 2>&1; }

# Waits for what the command says, half a minute at most.
await() {
	for try in $(seq 300); do "$@" && return 0; sleep 0.1; done
	return 1
}

start_containerd() {
	containerd --config "$dir/config.toml" >>"$dir/containerd.log" 2>&1 8>&- 9>&- </dev/null &
	echo $! >"$dir/containerd.pid"
}

images() {
	image berth.local/pause:1 "$dir/pause.tar" sleep 2147483647
	image berth.local/busybox:1 "$dir/busybox.tar" sh
	for name in pause busybox; do import_image "$name"; done
}

# Takes an image of our own in. The label keeps it from kubelets' garbage collection (containerd 1.7 and later).
import_image() {
	ctr --address "$socket" --namespace k8s.io images import "$dir/$1.tar" >/dev/null || return 1
	ctr --address "$socket" --namespace k8s.io images label "berth.local/$1:1" io.cri-containerd.pinned=pinned >/dev/null
	[ "$1" = busybox ] || return 0
	# The second for pods that name no tag; those pull always, unless they say otherwise.
	for tag in 1 latest; do ctr --address "$socket" --namespace k8s.io images tag --force berth.local/busybox:1 "docker.io/library/busybox:$tag" >/dev/null; done
}

# On a disk that is nearly full a kubelet removes images that no container uses, and without the one of the sandboxes no pod starts any more. No registry
# has ours: what is missing is taken in again.
keep_images() {
	while sleep 5 && kill -0 $$ 2>/dev/null; do
		there=$(ctr --address "$socket" --connect-timeout 2s --namespace k8s.io images list -q 2>/dev/null) || continue
		for name in pause busybox; do
			case "$there" in *"berth.local/$name:1"*) continue ;; esac
			say "image berth.local/$name:1 is gone; taking it in again"
			import_image "$name" || true
		done
	done
}

# A containerd that dies is started again, as systemd does it, unless DIR/down says that it is to stay away.
keep_running() {
	while :; do
		wait "$(cat "$dir/containerd.pid")" 2>/dev/null || true
		say "containerd ended; starting it again"
		while [ -e "$dir/down" ]; do sleep 0.05; done
		start_containerd
	done
}

# The cgroup of the pods, which a kubelet wants to find (--cgroup-root): in every hierarchy of version 1, or in the one of version 2.
make_cgroups() {
	if [ -e /sys/fs/cgroup/cgroup.controllers ]; then mkdir -p "/sys/fs/cgroup/$bridge"; return; fi
	for procs in /sys/fs/cgroup/*/cgroup.procs; do mkdir -p "${procs%/*}/$bridge"; done
}

# Everything in the folder is removed at the end, so it must be ours.
ours() { [ "$(cat "$dir/name" 2>/dev/null)" = "$bridge" ]; }
lock() {
	exec 9>"$dir/lock"
	flock -n 9 || die "$dir is in use by another containerd.sh"
}

run() {
	if ours; then
		lock
		clean # what a killed one left
		mkdir -p "$dir"
	fi
	[ -z "$(ls -A "$dir" | grep -vx containerd.sh)" ] || die "$dir is not empty: name a folder that can be removed afterwards"
	lock
	echo "$bridge" >"$dir/name"
	trap 'exit 0' INT TERM HUP
	trap 'trap "" INT TERM HUP; clean' EXIT
	configure
	network
	make_cgroups
	start_containerd
	await ready || die "containerd does not answer; the end of its log: $(tail -n 5 "$dir/containerd.log")"
	images
	if [ "$owned" ]; then
		# The shell that waits must be able to act on a signal, so somebody else reads.
		exec 8<&0
		{ cat <&8 >/dev/null; kill -TERM $$; } 9>&- &
		reader=$!
	fi
	keep_images 8<&- 9>&- >/dev/null &
	keeper=$!
	echo "$socket"
	say "a node on it: berth agent --bootstrap-kubeconfig FILE --container-runtime-endpoint unix://$socket --cgroup-root /$bridge --root-dir $dir/kubelet"
	keep_running
}

# The shims of this containerd, and nobody else's: the socket is in their command lines.
shims() { pgrep -f -- "^[^ ]*containerd-shim-runc-v2 .*-address $socket( |\$)" || true; }

stop_processes() {
	[ ! -e "$dir/containerd.pid" ] || ! grep -qa "$dir/config.toml" "/proc/$(cat "$dir/containerd.pid")/cmdline" 2>/dev/null ||
		kill -KILL "$(cat "$dir/containerd.pid")" 2>/dev/null || true
	for state in "$dir"/state/runc/*; do
		# Beside each other: each waits a tenth of a second for its container's end, and a node has a hundred and more.
		runc --root "$state" list -q 2>/dev/null | xargs -r -n 1 -P 16 runc --root "$state" delete --force 2>/dev/null || true
	done
	for pid in $(shims); do kill -KILL "$pid" 2>/dev/null || true; done
	for address in "$dir"/state/io.containerd.runtime.v2.task/*/*/address; do
		[ ! -e "$address" ] || rm -f "$(sed 's,^unix://,,' "$address")"
	done
}

# The pods' ends of the network go with their namespaces; what stays is the bridge, notes, and the rules of host ports.
remove_network() {
	ip link del "$bridge" 2>/dev/null || true
	rm -f /var/lib/cni/results/"$bridge"-*
	for sandbox in "$dir"/root/io.containerd.grpc.v1.cri/sandboxes/*; do
		rm -f "/var/lib/cni/results/cni-loopback-${sandbox##*/}-lo"
	done
	command -v iptables-save >/dev/null || return 0
	iptables-save -t nat 2>/dev/null | grep -F "name: \\\"$bridge\\\"" | sed -n 's/^-A //p' | while read -r rule; do
		chain=${rule##*-j }
		eval "iptables -w -t nat -D $rule" && iptables -w -t nat -F "$chain" && iptables -w -t nat -X "$chain"
	done 2>/dev/null || true
	# The chain that leads to those of all host ports, if nobody has one left; the plugin makes it again when it needs it.
	[ "$(iptables -w -t nat -S CNI-HOSTPORT-DNAT 2>/dev/null)" = "-N CNI-HOSTPORT-DNAT" ] || return 0
	for hook in PREROUTING OUTPUT; do
		iptables -w -t nat -D "$hook" -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT 2>/dev/null || true
	done
	iptables -w -t nat -X CNI-HOSTPORT-DNAT 2>/dev/null || true
}

unmount() {
	awk -v below="$dir/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | sort -r | while read -r mount; do
		umount -l "$(printf %b "$mount")" 2>/dev/null || true
	done
}

# Tests put their pods below this cgroup, so what a killed one leaves there goes, too.
remove_cgroups() {
	for top in /sys/fs/cgroup/$bridge /sys/fs/cgroup/*/$bridge; do
		[ -d "$top" ] || continue
		find "$top" -depth -type d | while read -r group; do
			for pid in $(cat "$group/cgroup.procs" 2>/dev/null); do kill -KILL "$pid" 2>/dev/null || true; done
		done
		await emptied "$top" || say "cannot remove $top"
	done
}
emptied() { find "$1" -depth -type d -exec rmdir {} + 2>/dev/null; [ ! -d "$1" ]; }

# The kubelet links to the log of every container, and leaves the links when it ends.
remove_log_links() { [ ! -d /var/log/containers ] || find /var/log/containers -lname "$dir/*" -delete; }

clean() {
	: >"$dir/down"
	for helper in ${reader-} ${keeper-}; do { pkill -P "$helper"; kill "$helper"; } 2>/dev/null || true; done
	stop_processes
	unmount
	remove_network
	remove_cgroups
	remove_log_links
	rm -rf --one-file-system "$dir"
}

[ $# -ge 1 ] || usage
case $1 in
install) [ "$(id -u)" = 0 ] || die "must be root"; install; exit ;;
run | clean) [ $# -ge 2 ] || usage ;;
*) usage ;;
esac
[ "$(id -u)" = 0 ] || die "must be root"
[ "$1" = clean ] || mkdir -p "$2"
[ -d "$2" ] || die "no folder $2"
dir=$(cd "$2" && pwd -P)
socket=$dir/containerd.sock
owned=; [ "${3-}" != --owned ] || owned=yes
# Names of bridges have 15 characters at most; the folder's name makes it ours.
bridge=berth$(printf %s "$dir" | sha256sum | cut -c1-8)
case $1 in
run) [ -z "$(missing)" ] || die "not found: $(missing | tr '\n' ' '): run 'containerd.sh install' first"; run ;;
clean)
	ours || die "$dir is not the folder of a containerd.sh"
	lock
	clean ;;
esac
