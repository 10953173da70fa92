//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/node/agent"
	"github.com/berth-k8s/berth/internal/node/agent/identity"
)

// agentFlags are those of the kubelet, by its names, that have to be put together.
type agentFlags struct {
	config         agent.Config
	labels         map[string]string
	taints         []string
	address        string
	bootstrap      string
	certDir        string
	nodeIP         string
	podAPIServer   string
	kubeReserved   map[string]string
	systemReserved map[string]string
	logMaxSize     string
	memory         string
	shutdown       shutdownFlags
	cpu            cpuFlags
	file           string
	healthzAddress string
}

func newAgentCommand() *cobra.Command {
	f := &agentFlags{config: agent.DefaultConfig()}
	var to connection
	cmd := &cobra.Command{
		Use:     "agent",
		GroupID: groupParts,
		Short:   "Make this machine a node of the cluster",
		Long: `Run the node agent: it registers this machine as a node and runs the pods that
are bound to it in a container runtime, through CRI. Its flags are the kubelet's.

The agent must run as root. When it ends, its pods keep running; the next start
adopts them. Static pods are read from --pod-manifest-path.`,
		Example: `  berth agent --bootstrap-kubeconfig .berth/node-bootstrap.kubeconfig
  berth agent --container-runtime-endpoint unix:///run/containerd/containerd.sock \
    --register-with-taints dedicated=lab:NoSchedule --kube-reserved cpu=200m,memory=500Mi`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, &to) },
	}
	to.addFlags(cmd.Flags())
	f.addFlags(cmd.Flags())
	return cmd
}

func (f *agentFlags) addFlags(flags *pflag.FlagSet) {
	c := &f.config
	flags.StringVar(&f.file, "config", "", "KubeletConfiguration file; flags that are given override its fields")
	flags.StringVar(&f.bootstrap, "bootstrap-kubeconfig", "",
		"kubeconfig file with a bootstrap token, with which the agent requests its client certificate; the agent renews that certificate, and ignores --kubeconfig")
	flags.StringVar(&f.certDir, "cert-dir", "", "folder for the client certificate of --bootstrap-kubeconfig (default: pki in --root-dir)")
	flags.StringVar(&c.NodeName, "hostname-override", "", "the node's name (default: this machine's host name)")
	flags.StringVar(&f.nodeIP, "node-ip", "", "IP address of the node, or two separated by a comma for dual stack (default: that of the interface with the default route)")
	flags.StringToStringVar(&f.labels, "node-labels", nil, "labels of the node, as key=value,...")
	flags.StringSliceVar(&f.taints, "register-with-taints", nil, "taints to register the node with, as key=value:NoSchedule,...; an existing node keeps its own")
	flags.StringVar(&c.RuntimeEndpoint, "container-runtime-endpoint", c.RuntimeEndpoint, "socket of the container runtime")
	flags.StringVar(&c.RootDir, "root-dir", c.RootDir, "folder for the agent's state and the pods' volumes")
	flags.StringVar(&c.PodLogDir, "pod-log-dir", c.PodLogDir, "folder for container logs")
	flags.StringVar(&c.StaticPodPath, "pod-manifest-path", "", "folder of static pod manifests, or the file of one")
	flags.DurationVar(&c.FileCheck, "file-check-frequency", c.FileCheck, "how often --pod-manifest-path is checked for changes")
	flags.StringVar(&f.address, "address", "", "IP address to serve the kubelet API (logs, exec, metrics, ...) on; 0.0.0.0 listens on all addresses (default: the primary address of --node-ip)")
	flags.IntVar(&c.Port, "port", c.Port, "port of the kubelet API; 0 picks a free one")
	flags.StringVar(&f.healthzAddress, "healthz-bind-address", "127.0.0.1", "IP address to serve /healthz on, plain HTTP, unauthenticated")
	flags.IntVar(&c.HealthzPort, "healthz-port", c.HealthzPort, "port of /healthz; 0 disables it")
	flags.StringVar(&c.TLSCert, "tls-cert-file", "", "certificate of the kubelet API (default: self-signed)")
	flags.StringVar(&c.TLSKey, "tls-private-key-file", "", "the key of that certificate")
	flags.StringVar(&c.ClientCA, "client-ca-file", "", "CA bundle for client certificates of the kubelet API (default: the cluster's, as published by the API server)")
	flags.IntVar(&c.MaxPods, "max-pods", c.MaxPods, "maximum number of pods on the node")
	flags.IntVar(&c.CPUs, "cpus", 0, "number of CPUs that the node reports, to overcommit this machine")
	flags.StringVar(&f.memory, "memory", "", "amount of memory that the node reports, such as 8Gi (default: the machine's, or the limit of --cgroup-root)")
	flags.Int64Var(&c.PodPIDs, "pod-max-pids", c.PodPIDs, "maximum number of processes per pod; -1: no limit of its own")
	flags.StringToStringVar(&f.kubeReserved, "kube-reserved", nil, "resources reserved for Kubernetes components, such as cpu=200m,memory=500Mi,ephemeral-storage=1Gi,pid=1000")
	flags.StringToStringVar(&f.systemReserved, "system-reserved", nil, "resources reserved for the rest of the system")
	f.cpu.addFlags(flags)
	c.Eviction.AddFlags(flags)
	flags.StringVar(&c.CgroupRoot, "cgroup-root", "", "parent cgroup of the pods' cgroups (default: the root)")
	flags.StringVar(&c.CgroupDriver, "cgroup-driver", c.CgroupDriver, "cgroup driver, cgroupfs or systemd: must be that of the container runtime")
	flags.StringVar(&f.podAPIServer, "pod-api-server", "", "address:port at which pods reach the API server (default: the address of the Service kubernetes)")
	flags.StringSliceVar(&c.ClusterDNS, "cluster-dns", nil, "IP addresses of the cluster DNS (default: pods use this machine's resolver)")
	flags.StringVar(&c.ClusterDomain, "cluster-domain", c.ClusterDomain, "the cluster's DNS domain")
	flags.StringVar(&c.ResolvConf, "resolv-conf", c.ResolvConf, "resolver configuration of this machine")
	flags.StringVar((*string)(&c.ImagePulls.Name), "image-pull-credentials-verification-policy", "",
		"for which images on the node a pod needs the credentials they were pulled with: NeverVerify, NeverVerifyPreloadedImages (the default), NeverVerifyAllowlistedImages or AlwaysVerify")
	flags.StringSliceVar(&c.ImagePulls.Allowlist, "preloaded-images-verification-allowlist", nil,
		"images of NeverVerifyAllowlistedImages, without tag or digest, or prefixes such as registry.example.com/team/*")
	f.shutdown.addFlags(flags)
	flags.DurationVar(&c.StatusUpdate, "node-status-update-frequency", c.StatusUpdate, "how often the node computes its status")
	flags.StringVar(&f.logMaxSize, "container-log-max-size", "10Mi", "size at which a container's log is rotated")
	flags.IntVar(&c.LogMaxFiles, "container-log-max-files", c.LogMaxFiles, "maximum number of log files per container")
}

func (f *agentFlags) run(cmd *cobra.Command, to *connection) error {
	if err := f.readConfig(cmd.Flags(), cmd.ErrOrStderr()); err != nil {
		return err
	}
	if err := f.complete(); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	var running atomic.Pointer[agent.Agent]
	go endBySignal(ctx, stop, &running)
	cfg, leave, err := f.identity(ctx, to)
	if err != nil {
		return err
	}
	defer leave()
	a, err := agent.New(f.config, cfg)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	a.Ready = func(node string, took time.Duration) {
		fmt.Fprintf(out, "ready node %s (%.1fs)\n", node, took.Seconds())
		running.Store(a)
	}
	return a.Run(ctx)
}

// identity is in whose name the agent talks to the API server: the node's own, if it has a
// bootstrap kubeconfig to ask for it with, or that of the kubeconfig it was given.
func (f *agentFlags) identity(ctx context.Context, to *connection) (cfg *rest.Config, leave func(), err error) {
	if f.bootstrap == "" {
		cfg, err := to.config("agent")
		return cfg, func() {}, err
	}
	name := f.config.NodeName
	if name == "" {
		if name, err = machineName(); err != nil {
			return nil, nil, err
		}
	}
	dir := f.certDir
	if dir == "" {
		dir = filepath.Join(f.config.RootDir, "pki")
	}
	own, err := identity.Obtain(ctx, identity.Options{Bootstrap: f.bootstrap, Dir: dir, Node: name})
	if err != nil {
		return nil, nil, err
	}
	own.Config.UserAgent = rest.DefaultKubernetesUserAgent() + "/agent"
	return own.Config, own.Stop, nil
}

// machineName is the node's if nobody names it.
func machineName() (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("hostname: %w: name the node with --hostname-override", err)
	}
	return strings.ToLower(name), nil
}

func (f *agentFlags) complete() (err error) {
	c := &f.config
	c.Version = currentVersion().Kubernetes
	if c.Labels, err = checkLabels(f.labels); err != nil {
		return err
	}
	if c.Taints, err = parseTaintFlag("--register-with-taints", f.taints); err != nil {
		return err
	}
	if c.KubeReserved, err = quantities("--kube-reserved", f.kubeReserved); err != nil {
		return err
	}
	if c.SystemReserved, err = quantities("--system-reserved", f.systemReserved); err != nil {
		return err
	}
	if err := f.cpu.complete(c); err != nil {
		return err
	}
	if c.NodeIPs, err = addresses(f.nodeIP); err != nil {
		return err
	}
	if c.Address = net.ParseIP(f.address); c.Address == nil && f.address != "" {
		return usagef("--address %q: must be an IP address", f.address)
	}
	if c.HealthzAddress = net.ParseIP(f.healthzAddress); c.HealthzAddress == nil {
		return usagef("--healthz-bind-address %q: must be an IP address", f.healthzAddress)
	}
	size, err := resource.ParseQuantity(f.logMaxSize)
	if err != nil || size.Sign() <= 0 {
		return usagef("--container-log-max-size %q: must be a size such as 10Mi", f.logMaxSize)
	}
	c.LogMaxSize = size.Value()
	if c.Memory, err = memorySize(f.memory); err != nil {
		return err
	}
	if c.Shutdown, err = f.shutdown.periods(); err != nil {
		return err
	}
	if f.podAPIServer != "" {
		if c.PodAPIServer, err = netip.ParseAddrPort(f.podAPIServer); err != nil {
			return usagef("--pod-api-server %q: must be an address and a port, such as 10.0.0.1:6443", f.podAPIServer)
		}
	}
	if f.bootstrap != "" {
		if err := checkOwnLabels(f.labels); err != nil {
			return err
		}
	}
	return f.check()
}

// memorySize of --memory; 0 if it is not given.
func memorySize(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	size, err := resource.ParseQuantity(text)
	if err != nil || size.Sign() <= 0 {
		return 0, usagef("--memory %q: must be a size such as 8Gi", text)
	}
	return size.Value(), nil
}

func (f *agentFlags) check() error {
	c := &f.config
	if err := c.ImagePulls.Check(); err != nil {
		return usagef("--image-pull-credentials-verification-policy: %v", err)
	}
	switch {
	case c.NodeName != "" && len(validation.IsDNS1123Subdomain(c.NodeName)) > 0:
		return usagef("--hostname-override %q: %s", c.NodeName, validation.IsDNS1123Subdomain(c.NodeName)[0])
	case c.Port < 0 || c.Port > 65535:
		return usagef("--port %d: must be between 0 and 65535", c.Port)
	case c.HealthzPort < 0 || c.HealthzPort > 65535:
		return usagef("--healthz-port %d: must be between 0 and 65535", c.HealthzPort)
	case c.MaxPods < 1:
		return usagef("--max-pods %d: must be 1 or more", c.MaxPods)
	case c.CPUs < 0:
		return usagef("--cpus %d: must be 0 or more", c.CPUs)
	case c.LogMaxFiles < 2:
		return usagef("--container-log-max-files %d: must be 2 or more", c.LogMaxFiles)
	case c.FileCheck <= 0:
		return usagef("--file-check-frequency %s: must be more than 0", c.FileCheck)
	case c.StatusUpdate <= 0:
		return usagef("--node-status-update-frequency %s: must be more than 0", c.StatusUpdate)
	case c.CgroupDriver != "cgroupfs" && c.CgroupDriver != "systemd":
		return usagef("--cgroup-driver %q: must be cgroupfs or systemd", c.CgroupDriver)
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return usagef("--tls-cert-file and --tls-private-key-file: must be given together")
	}
	return nil
}

func checkLabels(labels map[string]string) (map[string]string, error) {
	for key, value := range labels {
		if errs := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(errs) > 0 {
			return nil, usagef("--node-labels %q: %s", key+"="+value, errs[0])
		}
	}
	return labels, nil
}

// ownLabels are those of Kubernetes' own that a node may give itself, as are all below
// kubelet.kubernetes.io and node.kubernetes.io.
var ownLabels = []string{
	v1.LabelHostname, v1.LabelArchStable, v1.LabelOSStable, v1.LabelTopologyZone, v1.LabelTopologyRegion, v1.LabelInstanceTypeStable,
	v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion, v1.LabelInstanceType, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
}

// checkOwnLabels refuses what the admission plugin NodeRestriction would not let a node write in
// its own name, for ever.
func checkOwnLabels(labels map[string]string) error {
	within := func(domain, of string) bool { return domain == of || strings.HasSuffix(domain, "."+of) }
	for key := range labels {
		domain, _, prefixed := strings.Cut(key, "/")
		kubernetes := prefixed && (within(domain, "kubernetes.io") || within(domain, "k8s.io"))
		if kubernetes && !slices.Contains(ownLabels, key) && !within(domain, "kubelet.kubernetes.io") && !within(domain, "node.kubernetes.io") {
			return usagef("--node-labels %q: a node may not give itself this label: give it with kubectl label node", key)
		}
	}
	return nil
}

func parseTaintFlag(flag string, texts []string) ([]v1.Taint, error) {
	taints, err := parseTaints(texts)
	if err != nil {
		return nil, usagef("%s", strings.Replace(err.Error(), "--taint", flag, 1))
	}
	return taints, nil
}

func quantities(flag string, texts map[string]string) (v1.ResourceList, error) {
	out := v1.ResourceList{}
	for name, text := range texts {
		switch v1.ResourceName(name) {
		case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, "pid":
		default:
			return nil, usagef("%s %s: must be cpu, memory, ephemeral-storage or pid", flag, name)
		}
		amount, err := resource.ParseQuantity(text)
		if err != nil || amount.Sign() < 0 {
			return nil, usagef("%s %s=%s: must be a quantity such as 200m or 500Mi", flag, name, text)
		}
		out[v1.ResourceName(name)] = amount
	}
	return out, nil
}

func addresses(text string) ([]net.IP, error) {
	var out []net.IP
	for one := range strings.SplitSeq(text, ",") {
		if one == "" {
			continue
		}
		ip := net.ParseIP(strings.TrimSpace(one))
		if ip == nil {
			return nil, usagef("--node-ip %q: must be an IP address, or two", text)
		}
		out = append(out, ip)
	}
	if len(out) > 2 {
		return nil, usagef("--node-ip %q: at most two addresses, one of each family", text)
	}
	return out, nil
}
