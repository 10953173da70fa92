// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/usage"
)

// Agent makes a machine a node of a cluster, as configured by the flags of berth agent. Everything
// else is the kubelet's own configuration.
type Agent struct {
	program                      string
	file                         string // the user's KubeletConfiguration
	Kubelet                      Kubelet
	taints                       []string
	endpoint, cgroupRoot         string
	kubeReserved, systemReserved map[string]string
}

const defaultRoot = "/var/lib/berth-agent"

// AddFlags adds the flags of berth agent.
func (f *Agent) AddFlags(flags *pflag.FlagSet) {
	k := &f.Kubelet
	flags.StringVar(&f.program, "kubelet", "",
		"the kubelet to run (default: next to this executable, then in PATH; in its source tree it is built)")
	flags.StringVar(&f.file, "config", "", "KubeletConfiguration file; flags that are given override its fields")
	flags.StringVar(&k.Bootstrap, "bootstrap-kubeconfig", "",
		"kubeconfig file with a bootstrap token, with which the kubelet requests its client certificate, which it renews")
	flags.StringVar(&k.Kubeconfig, "kubeconfig", "",
		"kubeconfig file of the node; with --bootstrap-kubeconfig the kubelet writes it (default: kubeconfig in --root-dir)")

	flags.StringVar(&k.Certificates, "cert-dir", "", "folder for the node's certificates (default: pki in --root-dir)")
	flags.StringVar(&k.Root, "root-dir", defaultRoot, "folder for the kubelet's state and the pods' volumes")
	flags.StringVar(&k.Name, "hostname-override", "", "the node's name (default: this machine's host name)")
	flags.StringVar(&k.Addresses, "node-ip", "",
		"IP address of the node, or two separated by a comma for dual stack (default: that of the interface with the default route)")
	flags.StringToStringVar(&k.Labels, "node-labels", nil, "labels of the node, as key=value,...")
	flags.StringSliceVar(&f.taints, "register-with-taints", nil,
		"taints to register the node with, as key=value:NoSchedule,...; an existing node keeps its own; field registerWithTaints")

	flags.StringVar(&f.endpoint, "container-runtime-endpoint", "",
		"socket of the container runtime (default "+DefaultEndpoint+"); field containerRuntimeEndpoint")
	flags.StringVar(&f.cgroupRoot, "cgroup-root", "", "parent cgroup of the pods' cgroups (default: the root); field cgroupRoot")
	flags.StringToStringVar(&f.kubeReserved, "kube-reserved", nil,
		"resources reserved for Kubernetes components, such as cpu=200m,memory=500Mi,ephemeral-storage=1Gi,pid=1000; field kubeReserved")
	flags.StringToStringVar(&f.systemReserved, "system-reserved", nil,
		"resources reserved for the rest of the system; field systemReserved")
	addRemoved(flags)
}

// Exec replaces this process with the kubelet, passing additional arguments.
func (f *Agent) Exec(ctx context.Context, arguments []string) error {
	if err := f.completeFlags(ctx, arguments); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("must run as root: start it with sudo")
	}

	endpoint, _ := f.Kubelet.Configuration["containerRuntimeEndpoint"].(string)
	if err := Refuse(Running("/proc"), endpoint, true); err != nil {
		return err
	}
	if err := f.Kubelet.Write(); err != nil {
		return err
	}

	argv := f.Kubelet.Argv()
	if err := syscall.Exec(argv[0], argv, os.Environ()); err != nil {
		return fmt.Errorf("%s: %w", argv[0], err)
	}
	return nil
}

// completeFlags validates the flags and assembles the configuration.
func (f *Agent) completeFlags(ctx context.Context, arguments []string) (err error) {
	k := &f.Kubelet
	k.Arguments = arguments
	if k.Bootstrap == "" && k.Kubeconfig == "" {
		return usage.Errorf("--bootstrap-kubeconfig or --kubeconfig: one is required, for the cluster that this machine joins")
	}
	if k.Program, err = FindOrBuild(ctx, f.program, os.Stderr); err != nil {
		return err
	}

	if k.Name == "" {
		if k.Name, err = MachineName(); err != nil {
			return err
		}
	}

	k.Kubeconfig = cmp.Or(k.Kubeconfig, k.Path("kubeconfig"))
	k.Certificates = cmp.Or(k.Certificates, k.Path("pki"))

	if err := checkOwnLabels(k.Labels); err != nil {
		return err
	}
	return f.mergeConfig()
}

// mergeConfig merges Berth's defaults, the user's file, and the flags, in increasing precedence.
func (f *Agent) mergeConfig() error {
	fields := Defaults(f.Kubelet.ClientCA())
	fields["containerRuntimeEndpoint"] = DefaultEndpoint
	if f.file != "" {
		users, err := ReadConfiguration(f.file)
		if err != nil {
			return fmt.Errorf("--config: %w", err)
		}
		maps.Copy(fields, users)
	}

	if f.endpoint != "" {
		fields["containerRuntimeEndpoint"] = f.endpoint
	}
	if f.cgroupRoot != "" {
		fields["cgroupRoot"] = f.cgroupRoot
	}

	if len(f.kubeReserved) > 0 {
		fields["kubeReserved"] = f.kubeReserved
	}
	if len(f.systemReserved) > 0 {
		fields["systemReserved"] = f.systemReserved
	}

	if len(f.taints) > 0 {
		taints, err := parse.Taints("--register-with-taints", f.taints)
		if err != nil {
			return err
		}
		fields["registerWithTaints"] = taints
	}

	f.Kubelet.Configuration = fields
	return nil
}

// MachineName returns the default name of the node.
func MachineName() (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("hostname: %w: name the node with --hostname-override", err)
	}
	return strings.ToLower(name), nil
}

// ownLabels lists Kubernetes' labels that a node may set on itself, in addition to all below
// kubelet.kubernetes.io and node.kubernetes.io.
var ownLabels = []string{
	v1.LabelHostname, v1.LabelArchStable, v1.LabelOSStable, v1.LabelTopologyZone, v1.LabelTopologyRegion, v1.LabelInstanceTypeStable,
	v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion, v1.LabelInstanceType, "beta.kubernetes.io/os",
	"beta.kubernetes.io/arch",
}

// checkOwnLabels rejects labels that a node may not set on itself. The admission plugin
// NodeRestriction would refuse them forever, and the kubelet would only log that.
func checkOwnLabels(labels map[string]string) error {
	within := func(domain, of string) bool { return domain == of || strings.HasSuffix(domain, "."+of) }
	for key := range labels {
		domain, _, prefixed := strings.Cut(key, "/")
		kubernetes := prefixed && (within(domain, "kubernetes.io") || within(domain, "k8s.io"))
		if kubernetes && !slices.Contains(ownLabels, key) && !within(domain, "kubelet.kubernetes.io") &&
			!within(domain, "node.kubernetes.io") {
			return usage.Errorf("--node-labels %q: a node may not give itself this label: give it with kubectl label node", key)
		}
	}
	return nil
}

// addRemoved adds the flags of earlier versions, each with its remedy.
func addRemoved(flags *pflag.FlagSet) {
	for name, remedy := range map[string]string{
		"cpus":           "the kubelet reports the machine's CPUs: reserve some with the field systemReserved",
		"memory":         "the kubelet reports the machine's memory: reserve some with the field systemReserved",
		"context":        "the kubeconfig's current context is used: set it with kubectl config use-context",
		"pod-api-server": "pods find the API server at the address of the Service kubernetes",
		"tls-cert-file":  "set the fields tlsCertFile and tlsPrivateKeyFile in --config FILE",
		"client-ca-file": "set the field authentication.x509.clientCAFile in --config FILE",
	} {
		parse.AddRemoved(flags, name, remedy)
	}

	for name, field := range map[string]string{"pod-log-dir": "podLogsDir", "pod-manifest-path": "staticPodPath",
		"pod-max-pids": "podPidsLimit", "cluster-dns": "clusterDNS", "reserved-cpus": "reservedSystemCPUs"} {
		parse.AddRemoved(flags, name, "set the field "+field+" in --config FILE")
	}
	for name := range strings.FieldsSeq(asFields) {
		words := strings.Split(name, "-")
		for i, word := range words[1:] {
			words[i+1] = strings.ToUpper(word[:1]) + word[1:]
		}
		parse.AddRemoved(flags, name, "set the field "+strings.Join(words, "")+" in --config FILE")
	}
}

// asFields lists flags that became fields of the same name.
const asFields = `file-check-frequency address port healthz-bind-address healthz-port tls-private-key-file max-pods
cgroup-driver cluster-domain resolv-conf cpu-manager-policy cpu-manager-policy-options memory-manager-policy reserved-memory
topology-manager-policy topology-manager-scope topology-manager-policy-options eviction-hard eviction-soft
eviction-soft-grace-period eviction-minimum-reclaim eviction-pressure-transition-period eviction-max-pod-grace-period
image-pull-credentials-verification-policy preloaded-images-verification-allowlist shutdown-grace-period
shutdown-grace-period-critical-pods shutdown-grace-period-by-pod-priority node-status-update-frequency
container-log-max-size container-log-max-files`
