//go:build linux

package main

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/node/agent"
)

func amountOf(list v1.ResourceList) int64 { return list.Memory().Value() }

// withConfig is what an agent takes from a file, with these flags beside it.
func withConfig(t *testing.T, text string, args ...string) (agent.Config, string, error) {
	t.Helper()
	path := writeConfig(t, text)
	f := &agentFlags{config: agent.DefaultConfig()}
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	f.addFlags(flags)
	if err := flags.Parse(append(args, "--config", path)); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	err := f.readConfig(flags, &out)
	if err == nil {
		err = f.complete()
	}
	return f.config, strings.ReplaceAll(out.String(), path, "FILE"), err
}

const header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

func TestConfigFile(t *testing.T) {
	c, out, err := withConfig(t, header+`
staticPodPath: /etc/kubernetes/manifests
clusterDNS: [10.96.0.10]
maxPods: 42
healthzPort: 0
evictionHard: {memory.available: 200Mi, nodefs.available: 5%}
kubeReserved: {cpu: 100m}
shutdownGracePeriod: 30s
shutdownGracePeriodCriticalPods: 10s
registerWithTaints: [{key: dedicated, value: lab, effect: NoSchedule}]
authentication: {anonymous: {enabled: false}, webhook: {enabled: true, cacheTTL: 0s}, x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}
rotateCertificates: true
singleProcessOOMKill: false
logging: {flushFrequency: 0, verbosity: 0}
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true"}
reservedSystemCPUs: 0-1
topologyManagerPolicy: restricted
topologyManagerScope: pod
memoryManagerPolicy: Static
reservedMemory: [{numaNode: 0, limits: {memory: 150Mi, hugepages-2Mi: 4Mi}}, {numaNode: 1, limits: {memory: 50Mi}}]
featureGates: {NodeSwap: true}
`, "--max-pods", "50", "--port", "0")
	if err != nil {
		t.Fatal(err)
	}
	if c.StaticPodPath != "/etc/kubernetes/manifests" || len(c.ClusterDNS) != 1 || c.HealthzPort != 0 || !c.KubeReserved.Cpu().IsZero() || c.SystemReserved.Cpu().Value() != 2 ||
		c.Eviction.Hard["memory.available"] != "200Mi" || len(c.Eviction.Hard) != 2 || c.ClientCA != "/etc/kubernetes/pki/ca.crt" {
		t.Errorf("fields that apply: %+v", c)
	}
	if c.CPUPolicy != "static" || !c.CPUOptions.FullCores || c.ReservedCPUs.String() != "0-1" || c.Alignment.Policy != "restricted" || c.Alignment.Scope != "pod" {
		t.Errorf("CPUs: policy %s, options %+v, reserved %s, alignment %+v", c.CPUPolicy, c.CPUOptions, c.ReservedCPUs, c.Alignment)
	}
	if c.MemoryPolicy != "Static" || len(c.ReservedMemory) != 2 || amountOf(c.ReservedMemory[1]) != 50<<20 || len(c.ReservedMemory[0]) != 2 {
		t.Errorf("memory: policy %s, reserved %v", c.MemoryPolicy, c.ReservedMemory)
	}
	if c.MaxPods != 50 || c.Port != 0 {
		t.Errorf("max pods %d, port %d: flags do not come first", c.MaxPods, c.Port)
	}
	if c.Shutdown.Whole() != 30*time.Second || len(c.Shutdown) != 2 || len(c.Taints) != 1 || c.Taints[0].Value != "lab" {
		t.Errorf("shutdown %v, taints %v", c.Shutdown, c.Taints)
	}
	if want := "agent: FILE: these fields have no meaning for berth agent: featureGates\n"; out != want {
		t.Errorf("told %q, want %q", out, want)
	}
}

func TestConfigFileThatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		header + "maxPod: 5\n":                                         `unknown field "maxPod"`,
		header + "maxPods: 5\nmaxPods: 6\n":                            "already set",
		"kind: KubeletConfiguration\napiVersion: v1\n":                 "must be kubelet.config.k8s.io/v1beta1",
		header + "cpuManagerPolicy: dynamic\n":                         "--cpu-manager-policy \"dynamic\"",
		header + "cpuManagerPolicy: static\n":                          "--cpu-manager-policy static: needs reserved CPUs",
		header + "reservedSystemCPUs: 1-\n":                            "--reserved-cpus \"1-\"",
		header + "memoryManagerPolicy: Static\n":                       "--memory-manager-policy Static: needs --reserved-memory",
		header + "memoryManagerPolicy: static\n":                       "--memory-manager-policy \"static\"",
		header + "reservedMemory: [{numaNode: 0, limits: {cpu: 1}}]\n": "--reserved-memory: invalid memory reservation \"cpu=1\"",
		header + "topologyManagerPolicy: tight\n":                      "--topology-manager-policy: unknown policy \"tight\"",
		header + "cpuManagerPolicyOptions: {align-by-socket: \"true\"}\ncpuManagerPolicy: static\nkubeReserved: {cpu: 1m}\n": "CPU Manager Policy Alpha-level Options not enabled, but option \"align-by-socket\" provided",
		header + "port: 99999\n":                                   "--port 99999",
		header + "evictionHard: {memory: 1Gi}\n" + "maxPods: -1\n": "--max-pods -1",
		header + "#" + strings.Repeat("x", longestConfig):          "at most",
	} {
		if _, _, err := withConfig(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
}

// Every field that applies has a flag, and is in the documentation.
func TestConfigFieldsHaveFlags(t *testing.T) {
	f := &agentFlags{config: agent.DefaultConfig()}
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	f.addFlags(flags)
	config, _, err := kubeletConfiguration(writeConfig(t, header))
	if err != nil {
		t.Fatal(err)
	}
	documented, err := os.ReadFile("../../docs/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	for field, value := range kubeletFields {
		name := map[string]string{"authentication": "authentication.x509.clientCAFile"}[field]
		if !strings.Contains(string(documented), "`"+cmp.Or(name, field)+"`") {
			t.Errorf("docs/agent.md does not name %s", field)
		}
		if flag, _ := value(config); flags.Lookup(flag) == nil {
			t.Errorf("%s: there is no flag --%s", field, flag)
		}
	}
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
