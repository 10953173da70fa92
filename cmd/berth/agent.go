//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/up/kubelet"
)

// agentFlags are what makes a machine the node of a cluster. All else is the kubelet's own
// configuration.
type agentFlags struct {
	program        string
	file           string // the user's KubeletConfiguration
	kubelet        kubelet.Kubelet
	taints         []string
	endpoint       string
	cgroupRoot     string
	kubeReserved   map[string]string
	systemReserved map[string]string
}

func newAgentCommand() *cobra.Command {
	f := &agentFlags{}
	cmd := &cobra.Command{
		Use:     "agent [flags] [-- KUBELET FLAGS]",
		GroupID: groupParts,
		Short:   "Make this machine a node of a cluster, with upstream's kubelet",
		Long: `Make this Linux machine a node of any cluster: write a KubeletConfiguration and run
upstream's kubelet with it, in place of this process.

Everything else that a kubelet can be told is a field of --config FILE, upstream's
KubeletConfiguration, or a flag of the kubelet's own, after --.

The kubelet must run as root. When it ends, its pods keep running; the next start
adopts them.`,
		Example: `  berth agent --bootstrap-kubeconfig .berth/node-bootstrap.kubeconfig
  berth agent --bootstrap-kubeconfig bootstrap.conf --config kubelet.yaml \
    --register-with-taints dedicated=lab:NoSchedule --kube-reserved cpu=200m,memory=500Mi
  berth agent --kubeconfig node.conf -- --v=4`,
		Args: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); len(args) > 0 && at != 0 {
				return usagef("%q: no argument is expected but flags of the kubelet after --", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.runAgent(cmd.Context(), args) },
	}
	f.addFlags(cmd.Flags())
	return cmd
}

const defaultRoot = "/var/lib/berth-agent"

func (f *agentFlags) addFlags(flags *pflag.FlagSet) {
	k := &f.kubelet
	flags.StringVar(&f.program, "kubelet", "",
		"the kubelet to run (default: beside this executable, then in PATH; in its source tree it is built)")
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
		"socket of the container runtime (default "+kubelet.DefaultEndpoint+"); field containerRuntimeEndpoint")
	flags.StringVar(&f.cgroupRoot, "cgroup-root", "", "parent cgroup of the pods' cgroups (default: the root); field cgroupRoot")
	flags.StringToStringVar(&f.kubeReserved, "kube-reserved", nil,
		"resources reserved for Kubernetes components, such as cpu=200m,memory=500Mi,ephemeral-storage=1Gi,pid=1000; field kubeReserved")
	flags.StringToStringVar(&f.systemReserved, "system-reserved", nil,
		"resources reserved for the rest of the system; field systemReserved")
	for name, remedy := range removedFlags {
		flags.Var(removed(remedy), name, "")
		flags.Lookup(name).Hidden = true
	}
}

func (f *agentFlags) runAgent(ctx context.Context, arguments []string) error {
	if err := f.completeFlags(ctx, arguments); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("a node is run by root: start it with sudo")
	}

	endpoint, _ := f.kubelet.Configuration["containerRuntimeEndpoint"].(string)
	if err := kubelet.Refuse(kubelet.Running("/proc"), endpoint, true); err != nil {
		return err
	}
	if err := f.kubelet.Write(); err != nil {
		return err
	}

	argv := f.kubelet.Argv()
	if err := syscall.Exec(argv[0], argv, os.Environ()); err != nil {
		return fmt.Errorf("%s: %w", argv[0], err)
	}
	return nil
}

// completeFlags checks the flags and puts the configuration together.
func (f *agentFlags) completeFlags(ctx context.Context, arguments []string) (err error) {
	k := &f.kubelet
	k.Arguments = arguments
	if k.Bootstrap == "" && k.Kubeconfig == "" {
		return usagef("--bootstrap-kubeconfig or --kubeconfig: one must say which cluster this machine is to be a node of")
	}
	if k.Program, err = kubelet.FindOrBuild(ctx, f.program, os.Stderr); err != nil {
		return err
	}

	if k.Name == "" {
		if k.Name, err = machineName(); err != nil {
			return err
		}
	}

	if k.Kubeconfig == "" {
		k.Kubeconfig = k.Path("kubeconfig")
	}
	if k.Certificates == "" {
		k.Certificates = k.Path("pki")
	}

	if err := checkOwnLabels(k.Labels); err != nil {
		return err
	}
	return f.mergeConfig()
}

// mergeConfig merges Berth's defaults, the user's file, and over both the flags.
func (f *agentFlags) mergeConfig() error {
	fields := kubelet.Defaults(f.kubelet.ClientCA())
	fields["containerRuntimeEndpoint"] = kubelet.DefaultEndpoint
	if f.file != "" {
		users, err := kubelet.ReadConfiguration(f.file)
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
		taints, err := parseTaints(f.taints)
		if err != nil {
			return usagef("%s", strings.Replace(err.Error(), "--taint", "--register-with-taints", 1))
		}
		fields["registerWithTaints"] = taints
	}

	f.kubelet.Configuration = fields
	return nil
}

// machineName is the node's if nobody names it.
func machineName() (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("hostname: %w: name the node with --hostname-override", err)
	}
	return strings.ToLower(name), nil
}

// ownLabels are those of Kubernetes' own that a node may give itself, as are all below
// kubelet.kubernetes.io and node.kubernetes.io.
var ownLabels = []string{
	v1.LabelHostname, v1.LabelArchStable, v1.LabelOSStable, v1.LabelTopologyZone, v1.LabelTopologyRegion, v1.LabelInstanceTypeStable,
	v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion, v1.LabelInstanceType, "beta.kubernetes.io/os",
	"beta.kubernetes.io/arch",
}

// checkOwnLabels refuses what the admission plugin NodeRestriction would not let a node write in
// its own name, for ever: the kubelet only logs it.
func checkOwnLabels(labels map[string]string) error {
	within := func(domain, of string) bool { return domain == of || strings.HasSuffix(domain, "."+of) }
	for key := range labels {
		domain, _, prefixed := strings.Cut(key, "/")
		kubernetes := prefixed && (within(domain, "kubernetes.io") || within(domain, "k8s.io"))
		if kubernetes && !slices.Contains(ownLabels, key) && !within(domain, "kubelet.kubernetes.io") &&
			!within(domain, "node.kubernetes.io") {
			return usagef("--node-labels %q: a node may not give itself this label: give it with kubectl label node", key)
		}
	}
	return nil
}

// removedFlags are those of earlier versions, each with its remedy.
var removedFlags = func() map[string]string {
	all := map[string]string{
		"cpus":           "the kubelet reports the machine's CPUs: reserve some with the field systemReserved",
		"memory":         "the kubelet reports the machine's memory: reserve some with the field systemReserved",
		"context":        "the kubeconfig's current context is used: set it with kubectl config use-context",
		"pod-api-server": "pods find the API server at the address of the Service kubernetes",
		"tls-cert-file":  "set the fields tlsCertFile and tlsPrivateKeyFile in --config FILE",
		"client-ca-file": "set the field authentication.x509.clientCAFile in --config FILE",
	}
	for name, field := range map[string]string{
		"pod-log-dir": "podLogsDir", "pod-manifest-path": "staticPodPath", "file-check-frequency": "fileCheckFrequency",
		"address": "address", "port": "port", "healthz-bind-address": "healthzBindAddress", "healthz-port": "healthzPort",
		"tls-private-key-file": "tlsPrivateKeyFile", "max-pods": "maxPods", "pod-max-pids": "podPidsLimit", "cgroup-driver": "cgroupDriver",
		"cluster-dns": "clusterDNS", "cluster-domain": "clusterDomain", "resolv-conf": "resolvConf",
		"cpu-manager-policy": "cpuManagerPolicy", "cpu-manager-policy-options": "cpuManagerPolicyOptions",
		"reserved-cpus":         "reservedSystemCPUs",
		"memory-manager-policy": "memoryManagerPolicy", "reserved-memory": "reservedMemory",
		"topology-manager-policy": "topologyManagerPolicy", "topology-manager-scope": "topologyManagerScope",
		"topology-manager-policy-options": "topologyManagerPolicyOptions",
		"eviction-hard":                   "evictionHard", "eviction-soft": "evictionSoft",
		"eviction-soft-grace-period": "evictionSoftGracePeriod",
		"eviction-minimum-reclaim":   "evictionMinimumReclaim", "eviction-pressure-transition-period": "evictionPressureTransitionPeriod",
		"eviction-max-pod-grace-period":              "evictionMaxPodGracePeriod",
		"image-pull-credentials-verification-policy": "imagePullCredentialsVerificationPolicy",
		"preloaded-images-verification-allowlist":    "preloadedImagesVerificationAllowlist",
		"shutdown-grace-period":                      "shutdownGracePeriod",
		"shutdown-grace-period-critical-pods":        "shutdownGracePeriodCriticalPods",
		"shutdown-grace-period-by-pod-priority":      "shutdownGracePeriodByPodPriority",
		"node-status-update-frequency":               "nodeStatusUpdateFrequency",
		"container-log-max-size":                     "containerLogMaxSize", "container-log-max-files": "containerLogMaxFiles",
	} {
		if all[name] == "" {
			all[name] = "set the field " + field + " in --config FILE"
		}
	}
	return all
}()

// removed is the value of a flag that is no more. Setting it is an error, with the remedy.
type removed string

func (removed) String() string     { return "" }
func (removed) Type() string       { return "string" }
func (r removed) Set(string) error { return errors.New("is not a flag any more: " + string(r)) }
