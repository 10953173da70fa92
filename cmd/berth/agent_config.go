//go:build linux

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubelet "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// longestConfig is far more than a KubeletConfiguration with all its fields.
const longestConfig = 1 << 20

// readConfig sets the flags that the fields of --config stand for, unless they are given, and
// prints the fields that have no meaning here.
func (f *agentFlags) readConfig(flags *pflag.FlagSet, out io.Writer) error {
	if f.file == "" {
		return nil
	}
	config, raw, err := kubeletConfiguration(f.file)
	if err != nil {
		return usagef("--config %s: %v", f.file, err)
	}
	for _, field := range slices.Sorted(maps.Keys(kubeletFields)) {
		flag, value := kubeletFields[field](config)
		if _, written := raw[field]; !written || value == "" || flags.Changed(flag) {
			continue
		}
		if err := flags.Set(flag, value); err != nil {
			return usagef("--config %s: %s: %v", f.file, field, err)
		}
	}
	if ignored := ignoredFields(raw); len(ignored) > 0 {
		fmt.Fprintf(out, "agent: %s: these fields have no meaning for berth agent: %s\n", f.file, strings.Join(ignored, ", "))
	}
	return nil
}

// kubeletConfiguration parses a file strictly, as the kubelet does. raw has the fields that are
// present.
func kubeletConfiguration(path string) (*kubelet.KubeletConfiguration, map[string]any, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, longestConfig+1))
	if err != nil {
		return nil, nil, err
	}
	if len(text) > longestConfig {
		return nil, nil, fmt.Errorf("must be at most %d bytes", longestConfig)
	}
	config, raw := &kubelet.KubeletConfiguration{}, map[string]any{}
	if err := yaml.UnmarshalStrict(text, config); err != nil {
		return nil, nil, err
	}
	if config.APIVersion != kubelet.SchemeGroupVersion.String() || config.Kind != "KubeletConfiguration" {
		return nil, nil, fmt.Errorf("is %s %s, and must be %s KubeletConfiguration", config.APIVersion, config.Kind, kubelet.SchemeGroupVersion)
	}
	return config, raw, yaml.Unmarshal(text, &raw)
}

// kubeletFields are the fields with a flag. An empty value is not set: for a field with its zero
// value the kubelet uses the default.
var kubeletFields = map[string]func(*kubelet.KubeletConfiguration) (flag, value string){
	"staticPodPath": func(c *kubelet.KubeletConfiguration) (string, string) { return "pod-manifest-path", c.StaticPodPath },
	"podLogsDir":    func(c *kubelet.KubeletConfiguration) (string, string) { return "pod-log-dir", c.PodLogsDir },
	"fileCheckFrequency": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "file-check-frequency", period(c.FileCheckFrequency)
	},
	"address": func(c *kubelet.KubeletConfiguration) (string, string) { return "address", c.Address },
	"port":    func(c *kubelet.KubeletConfiguration) (string, string) { return "port", number(c.Port) },
	"healthzBindAddress": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "healthz-bind-address", c.HealthzBindAddress
	},
	"healthzPort": func(c *kubelet.KubeletConfiguration) (string, string) { return "healthz-port", optional(c.HealthzPort) },
	"tlsCertFile": func(c *kubelet.KubeletConfiguration) (string, string) { return "tls-cert-file", c.TLSCertFile },
	"tlsPrivateKeyFile": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "tls-private-key-file", c.TLSPrivateKeyFile
	},
	"authentication": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "client-ca-file", c.Authentication.X509.ClientCAFile
	},
	"containerRuntimeEndpoint": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "container-runtime-endpoint", c.ContainerRuntimeEndpoint
	},
	"clusterDomain": func(c *kubelet.KubeletConfiguration) (string, string) { return "cluster-domain", c.ClusterDomain },
	"clusterDNS": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "cluster-dns", strings.Join(c.ClusterDNS, ",")
	},
	"resolvConf": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "resolv-conf", optional(c.ResolverConfig)
	},
	"cgroupRoot":   func(c *kubelet.KubeletConfiguration) (string, string) { return "cgroup-root", c.CgroupRoot },
	"cgroupDriver": func(c *kubelet.KubeletConfiguration) (string, string) { return "cgroup-driver", c.CgroupDriver },
	"maxPods":      func(c *kubelet.KubeletConfiguration) (string, string) { return "max-pods", number(c.MaxPods) },
	"podPidsLimit": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "pod-max-pids", optional(c.PodPidsLimit)
	},
	"kubeReserved": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "kube-reserved", pairs(c.KubeReserved, "=")
	},
	"systemReserved": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "system-reserved", pairs(c.SystemReserved, "=")
	},
	"evictionHard": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "eviction-hard", pairs(c.EvictionHard, "<")
	},
	"evictionSoft": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "eviction-soft", pairs(c.EvictionSoft, "<")
	},
	"evictionSoftGracePeriod": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "eviction-soft-grace-period", pairs(c.EvictionSoftGracePeriod, "=")
	},
	"evictionMinimumReclaim": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "eviction-minimum-reclaim", pairs(c.EvictionMinimumReclaim, "=")
	},
	"evictionPressureTransitionPeriod": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "eviction-pressure-transition-period", period(c.EvictionPressureTransitionPeriod)
	},
	"evictionMaxPodGracePeriod": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "eviction-max-pod-grace-period", number(c.EvictionMaxPodGracePeriod)
	},
	"nodeStatusUpdateFrequency": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "node-status-update-frequency", period(c.NodeStatusUpdateFrequency)
	},
	"containerLogMaxSize": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "container-log-max-size", c.ContainerLogMaxSize
	},
	"containerLogMaxFiles": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "container-log-max-files", optional(c.ContainerLogMaxFiles)
	},
	"imagePullCredentialsVerificationPolicy": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "image-pull-credentials-verification-policy", string(c.ImagePullCredentialsVerificationPolicy)
	},
	"preloadedImagesVerificationAllowlist": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "preloaded-images-verification-allowlist", strings.Join(c.PreloadedImagesVerificationAllowlist, ",")
	},
	"cpuManagerPolicy": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "cpu-manager-policy", c.CPUManagerPolicy
	},
	"cpuManagerPolicyOptions": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "cpu-manager-policy-options", pairs(c.CPUManagerPolicyOptions, "=")
	},
	"reservedSystemCPUs": func(c *kubelet.KubeletConfiguration) (string, string) { return "reserved-cpus", c.ReservedSystemCPUs },
	"memoryManagerPolicy": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "memory-manager-policy", c.MemoryManagerPolicy
	},
	"reservedMemory": func(c *kubelet.KubeletConfiguration) (string, string) {
		var nodes []string
		for _, r := range c.ReservedMemory {
			var amounts []string
			for name, amount := range r.Limits {
				amounts = append(amounts, string(name)+"="+amount.String())
			}
			slices.Sort(amounts)
			nodes = append(nodes, fmt.Sprintf("%d:%s", r.NumaNode, strings.Join(amounts, ",")))
		}
		return "reserved-memory", strings.Join(nodes, ";")
	},
	"topologyManagerPolicy": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "topology-manager-policy", c.TopologyManagerPolicy
	},
	"topologyManagerScope": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "topology-manager-scope", c.TopologyManagerScope
	},
	"topologyManagerPolicyOptions": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "topology-manager-policy-options", pairs(c.TopologyManagerPolicyOptions, "=")
	},
	"registerWithTaints": func(c *kubelet.KubeletConfiguration) (string, string) {
		var taints []string
		for _, taint := range c.RegisterWithTaints {
			taints = append(taints, taint.ToString())
		}
		return "register-with-taints", strings.Join(taints, ",")
	},
	"shutdownGracePeriod": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "shutdown-grace-period", period(c.ShutdownGracePeriod)
	},
	"shutdownGracePeriodCriticalPods": func(c *kubelet.KubeletConfiguration) (string, string) {
		return "shutdown-grace-period-critical-pods", period(c.ShutdownGracePeriodCriticalPods)
	},
	"shutdownGracePeriodByPodPriority": func(c *kubelet.KubeletConfiguration) (string, string) {
		var periods []string
		for _, p := range c.ShutdownGracePeriodByPodPriority {
			periods = append(periods, fmt.Sprintf("%d=%ds", p.Priority, p.ShutdownGracePeriodSeconds))
		}
		return "shutdown-grace-period-by-pod-priority", strings.Join(periods, ",")
	},
}

// sameHere are fields without a flag, with the value that describes what the agent does anyway:
// with it they need not be reported.
var sameHere = map[string]string{
	"apiVersion": `"kubelet.config.k8s.io/v1beta1"`, "kind": `"KubeletConfiguration"`,
	"authorization": `{"mode":"Webhook","webhook":{"cacheAuthorizedTTL":"0s","cacheUnauthorizedTTL":"0s"}}`,
	"cgroupsPerQOS": "true", "enableControllerAttachDetach": "true", "enableDebuggingHandlers": "true",
	"enableServer": "true", "enforceNodeAllocatable": `["pods"]`, "localStorageCapacityIsolation": "true",
	"registerNode": "true", "rotateCertificates": "true", "serializeImagePulls": "false",
	"singleProcessOOMKill": "false", "oomScoreAdj": "-999",
}

// ignoredFields returns the fields that are present, have a value, and do not apply.
func ignoredFields(raw map[string]any) (names []string) {
	for field, value := range raw {
		text, _ := json.Marshal(value)
		if _, applies := kubeletFields[field]; !applies && !saysNothing(value) && sameHere[field] != string(text) {
			names = append(names, field)
		}
	}
	slices.Sort(names)
	return names
}

// saysNothing reports a zero value, for which the kubelet uses its default. kubeadm writes many of
// them.
func saysNothing(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case string:
		return v == "" || v == "0s"
	case float64:
		return v == 0
	case []any:
		return len(v) == 0
	case map[string]any:
		for _, inner := range v {
			if !saysNothing(inner) {
				return false
			}
		}
		return true
	}
	return false
}

func period(d metav1.Duration) string {
	if d.Duration == 0 {
		return ""
	}
	return d.Duration.String()
}

func number(n int32) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(int(n))
}

// optional is a value that counts even if it is zero.
func optional[T any](value *T) string {
	if value == nil {
		return ""
	}
	return fmt.Sprint(*value)
}

func pairs(values map[string]string, between string) string {
	all := make([]string, 0, len(values))
	for _, key := range slices.SortedFunc(maps.Keys(values), cmp.Compare[string]) {
		all = append(all, key+between+values[key])
	}
	return strings.Join(all, ",")
}
