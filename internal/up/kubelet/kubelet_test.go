// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const bootstrap = `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
 users: [{name: u, user: {token: a.b}}], clusters: [{name: c, cluster: {server: "https://127.0.0.1:1", certificate-authority-data: Y2E=}}]}`

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConfigurationAndCommandLine(t *testing.T) {
	dir := t.TempDir()
	k := &Kubelet{
		Program: "/bin/kubelet", Root: filepath.Join(dir, "root"), Name: "n", Addresses: "10.1.2.3", Labels: map[string]string{"b": "2", "a": "1"},
		Bootstrap: write(t, filepath.Join(dir, "bootstrap"), bootstrap), Kubeconfig: "/k", Certificates: "/pki", Arguments: []string{"-v", "4"},
	}
	k.Configuration = Defaults(k.ClientCA())
	if err := k.Write(); err != nil {
		t.Fatal(err)
	}

	want := "/bin/kubelet --config R/config.yaml --root-dir R --cert-dir /pki --kubeconfig /k --hostname-override n --bootstrap-kubeconfig B --node-ip 10.1.2.3 --node-labels a=1,b=2 -v 4"
	got := strings.NewReplacer(k.Root, "R", k.Bootstrap, "B").Replace(strings.Join(k.Argv(), " "))
	if got != want {
		t.Errorf("command line\n%s, want\n%s", got, want)
	}
	if ca, err := os.ReadFile(k.ClientCA()); err != nil || string(ca) != "ca" {
		t.Errorf("CA %q (%v)", ca, err)
	}
	fields, err := ReadConfiguration(k.Path("config.yaml"))
	if text, _ := yaml.Marshal(fields); err != nil || !strings.Contains(string(text), "clientCAFile: "+k.ClientCA()) || !strings.Contains(string(text), "failCgroupV1: false") {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestConfigurationThatIsNone(t *testing.T) {
	for text, want := range map[string]string{
		"kind: Pod":  "kind Pod: must be KubeletConfiguration",
		"a: 1\na: 2": `key "a" already set in map`,
		"":           "kind <nil>: must be KubeletConfiguration",
	} {
		if _, err := ReadConfiguration(write(t, filepath.Join(t.TempDir(), "c"), text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// TestKubeletsOfTheMachineAreFound verifies that the kubelets in a /proc are found with their
// runtimes, whether these are set by a flag, in a file, or not at all.
func TestKubeletsOfTheMachineAreFound(t *testing.T) {
	proc := t.TempDir()
	write(t, filepath.Join(proc, "10", "cmdline"), "/usr/bin/kubelet\x00--container-runtime-endpoint=unix:///a.sock\x00")
	write(t, filepath.Join(proc, "11", "cmdline"), "kubelet\x00--config\x00/etc/kubelet.yaml\x00")
	write(t, filepath.Join(proc, "11", "root", "etc", "kubelet.yaml"), "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///b.sock\n")
	write(t, filepath.Join(proc, "12", "cmdline"), "kubelet\x00")
	write(t, filepath.Join(proc, "13", "cmdline"), "vi\x00kubelet\x00")
	write(t, filepath.Join(proc, "14", "cmdline"), "")
	want := []Process{{"10", "unix:///a.sock"}, {"11", "unix:///b.sock"}, {"12", DefaultEndpoint}}
	if got := Running(proc); !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}

func TestAnotherKubeletIsRefused(t *testing.T) {
	machines, berths := Process{"7", DefaultEndpoint}, Process{"8", "unix:///tmp/berth-containerd-1/containerd.sock"}
	for _, c := range []struct {
		name     string
		running  Process
		endpoint string
		named    bool
		want     string
	}{
		{"the machine's beside a containerd of our own", machines, "unix:///tmp/berth-containerd-2/containerd.sock", false, "name another runtime with --container-runtime-endpoint"},
		{"another berth up", berths, "unix:///tmp/berth-containerd-2/containerd.sock", false, ""},
		{"the machine's on the socket that is named", machines, "/run/containerd/containerd.sock", true, "terminate each other's pods"},
		{"the machine's beside a socket that is named", machines, "unix:///run/other.sock", true, ""},
		{"another berth up on the socket that is named", berths, berths.Endpoint, true, "terminate each other's pods"},
	} {
		err := Refuse([]Process{c.running}, c.endpoint, c.named)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
