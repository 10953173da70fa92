// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// asAgent returns the configuration passed to the kubelet by berth agent, and its command line.
func asAgent(t *testing.T, args ...string) (configuration, argv string, err error) {
	t.Helper()
	f := &Agent{}
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	f.AddFlags(flags)
	if err := flags.Parse(append([]string{"--kubelet", "/bin/true", "--hostname-override", "n", "--bootstrap-kubeconfig", "/b"}, args...)); err != nil {
		return "", "", err
	}
	if err := f.completeFlags(t.Context(), flags.Args()); err != nil {
		return "", "", err
	}
	text, err := yaml.Marshal(f.Kubelet.Configuration)
	return string(text), strings.Join(f.Kubelet.Argv(), " "), err
}

// TestAgentConfiguresTheKubelet verifies that a flag overrides the field of the file, that the file
// overrides Berth's field, and that other settings reach the kubelet unchanged.
func TestAgentConfiguresTheKubelet(t *testing.T) {
	file := writeTemp(t, "kubelet.yaml", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: true\nmaxPods: 7\nkubeReserved: {cpu: 1}\n")
	configuration, argv, err := asAgent(t, "--config", file, "--kube-reserved", "cpu=200m", "--node-labels", "disk=ssd",
		"--register-with-taints", "dedicated=lab:NoSchedule", "--root-dir", "/r", "--", "--v=4")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"failCgroupV1: true\n", "maxPods: 7\n", "kubeReserved:\n  cpu: 200m\n", "rotateCertificates: true\n", "clientCAFile: /r/client-ca.crt\n",
		"containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n", "registerWithTaints:\n- effect: NoSchedule\n  key: dedicated\n  value: lab\n",
	} {
		if !strings.Contains(configuration, want) {
			t.Errorf("no %q in\n%s", want, configuration)
		}
	}
	const want = "/bin/true --config /r/config.yaml --root-dir /r --cert-dir /r/pki --kubeconfig /r/kubeconfig --hostname-override n " +
		"--bootstrap-kubeconfig /b --node-labels disk=ssd --v=4"
	if argv != want {
		t.Errorf("command line\n%s, want\n%s", argv, want)
	}
}

func TestAgentRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"--max-pods 5":                             "has been removed: set the field maxPods in --config FILE",
		"--eviction-hard memory.available<1Gi":     "has been removed: set the field evictionHard in --config FILE",
		"--cpus 8":                                 "reserve some with the field systemReserved",
		"--node-labels node-role.kubernetes.io/x=": "a node may not give itself this label",
		"--register-with-taints a":                 `--register-with-taints: taint "a": no effect`,
		"--config /nowhere":                        "--config: open /nowhere",
		"--kubelet /nowhere":                       "--kubelet: ",
		"--bootstrap-kubeconfig=":                  "--bootstrap-kubeconfig or --kubeconfig: one is required",
	} {
		if _, _, err := asAgent(t, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}

// flagsLeft maps flags of the former stand-alone kubelet of berth agent to their equivalent: an
// argument of the kubelet or a field of its configuration.
var flagsLeft = map[string]string{
	"bootstrap-kubeconfig=/x":              "--bootstrap-kubeconfig /x",
	"cert-dir=/x":                          "--cert-dir /x",
	"cgroup-root=/x":                       "cgroupRoot: /x",
	"container-runtime-endpoint=unix:///x": "containerRuntimeEndpoint: unix:///x",
	"hostname-override=x":                  "--hostname-override x",
	"kube-reserved=cpu=1":                  `kubeReserved: cpu: "1"`,
	"kubeconfig=/x":                        "--kubeconfig /x",
	"node-ip=10.0.0.1":                     "--node-ip 10.0.0.1",
	"node-labels=a=b":                      "--node-labels a=b",
	"register-with-taints=a=b:NoSchedule":  "registerWithTaints: - effect: NoSchedule key: a value: b",
	"root-dir=/x":                          "--root-dir /x",
	"system-reserved=cpu=1,pid=1000":       `systemReserved: cpu: "1" pid: "1000"`,
}

// flagsGone lists the remaining flags, except for --config.
const flagsGone = `address cgroup-driver client-ca-file cluster-dns cluster-domain container-log-max-files
container-log-max-size context cpu-manager-policy cpu-manager-policy-options cpus eviction-hard eviction-max-pod-grace-period eviction-minimum-reclaim
eviction-pressure-transition-period eviction-soft eviction-soft-grace-period file-check-frequency healthz-bind-address healthz-port
image-pull-credentials-verification-policy max-pods memory memory-manager-policy node-status-update-frequency pod-api-server pod-log-dir pod-manifest-path
pod-max-pids port preloaded-images-verification-allowlist reserved-cpus reserved-memory resolv-conf shutdown-grace-period
shutdown-grace-period-by-pod-priority shutdown-grace-period-critical-pods tls-cert-file tls-private-key-file topology-manager-policy
topology-manager-policy-options topology-manager-scope`

// TestFlagsOfBefore verifies that each earlier flag keeps its meaning, or is an error that names an
// existing field of KubeletConfiguration to set instead.
func TestFlagsOfBefore(t *testing.T) {
	for arg, want := range flagsLeft {
		configuration, argv, err := asAgent(t, "--"+arg)
		if text := argv + " " + strings.Join(strings.Fields(configuration), " "); err != nil || !strings.Contains(text, want) {
			t.Errorf("--%s: no %s in %s (%v)", arg, want, text, err)
		}
	}
	field := regexp.MustCompile(`fields? (\w+(?:\.\w+)*)(?: and (\w+))?`)
	for _, name := range strings.Fields(flagsGone) {
		_, _, err := asAgent(t, "--"+name, "1")
		if err == nil || !strings.Contains(err.Error(), "has been removed") {
			t.Errorf("--%s: %v", name, err)
			continue
		}
		named := field.FindStringSubmatch(err.Error())
		if named == nil && name != "context" && name != "pod-api-server" {
			t.Errorf("--%s: names no field: %v", name, err)
			continue
		}
		for _, path := range named[min(1, len(named)):] {
			if path != "" && !hasField(reflect.TypeFor[kubeletconfig.KubeletConfiguration](), strings.Split(path, ".")) {
				t.Errorf("--%s: a KubeletConfiguration has no field %s", name, path)
			}
		}
	}
}

// hasField reports whether a type has a path of fields, by their JSON names.
func hasField(in reflect.Type, path []string) bool {
	for _, f := range reflect.VisibleFields(in) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name == path[0] {
			return len(path) == 1 || hasField(f.Type, path[1:])
		}
	}
	return false
}

func writeTemp(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
