package main

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-k8s/berth/internal/kube/signals"
	"github.com/berth-k8s/berth/internal/node/pressure"
	"github.com/berth-k8s/berth/internal/node/simnodes"
	"github.com/berth-k8s/berth/internal/node/simnodes/kubelet"
)

// nodesShape is the shape of simulated nodes as flags give it.
type nodesShape struct {
	count, zones   int
	prefix, region string
	cpu, memory    string
	pods           int
	resources      []string
	labels         []string
	taints         []string
	renewInterval  time.Duration
	statusInterval time.Duration
	terminateAfter time.Duration
	eviction       pressure.Config
	workers        int
}

func newNodes() *cobra.Command {
	var shape nodesShape
	var to connection
	cmd := &cobra.Command{
		Use:     "nodes",
		GroupID: groupTry,
		Short:   "Simulated nodes on any cluster; make them fail",
		Long: `Run simulated nodes: thousands in one process, on any cluster. They register,
renew their Leases and report their status as kubelets do; pods bound to them
start, become ready, end and are deleted, but no container runs.

Nodes are called node-1, node-2, ... (--name-prefix). Nodes of an earlier
run are adopted with their pods; those beyond --count are removed. A node that is
deleted while this runs stays gone, with its pods, until the next start. After
Ctrl-C the nodes stay in the cluster and are silent, like machines without power.

Annotations on a pod set how its processes behave:
  berth.dev/run-for: 30s          containers end after that time; then the pod's
                                  restartPolicy decides. Pods of a Job: 1s,
                                  others: never
  berth.dev/exit-code: "1"        with this code (default 0)
  berth.dev/init-for: 10s         how long each init container takes (default 0s)
  berth.dev/terminate-after: 20s  from SIGTERM to the end; at most the grace period
  berth.dev/ready: "false"        the result of every readiness probe
  berth.dev/uses: memory=300Mi    what they use of memory and ephemeral-storage; a
                                  node that runs short evicts pods as a kubelet does
A readiness probe that runs the command false fails, any other passes after its
initialDelaySeconds.`,
		Example: `  berth nodes --count 5000 --zones 5
  berth nodes --count 8 --name-prefix gpu- --resource nvidia.com/gpu=8 --taint nvidia.com/gpu=true:NoSchedule
  berth nodes fail --zone z1 --for 2m
  berth nodes condition node-3 MemoryPressure=True`,
		Args: noUnknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return shape.runNodes(cmd, &to) },
	}
	to.addFlags(cmd.PersistentFlags())
	to.to.AddKubectlFlags(cmd.PersistentFlags())
	shape.addFlags(cmd.Flags())
	cmd.AddCommand(newNodesFail(&to), newNodesRecover(&to), newNodesCondition(&to))
	return cmd
}

func (s *nodesShape) addFlags(flags *pflag.FlagSet) {
	flags.IntVar(&s.count, "count", 3, "how many nodes")
	flags.IntVar(&s.zones, "zones", 3, "number of zones (z1, z2, ...) that the nodes are spread over; 0: no zone labels")
	flags.StringVar(&s.region, "region", "r1", "the region of all zones")
	flags.StringVar(&s.prefix, "name-prefix", "node-", "prefix of the nodes' names, before the number")
	flags.StringVar(&s.cpu, "cpu", "32", "CPUs of each node")
	flags.StringVar(&s.memory, "memory", "64Gi", "memory of each node")
	flags.IntVar(&s.pods, "pods", 110, "maximum number of pods per node, as the kubelet's --max-pods")
	flags.StringArrayVar(&s.resources, "resource", nil, "another resource of each node, as nvidia.com/gpu=8 (repeatable)")

	flags.StringArrayVar(&s.labels, "label", nil, "a label of each node, as key=value (repeatable)")
	flags.StringArrayVar(&s.taints, "taint", nil, "a taint that each node is created with, as key=value:NoSchedule (repeatable)")
	flags.DurationVar(&s.renewInterval, "lease-renew-interval", 0,
		"time between two renewals of a node's Lease of 40s (default 10s, the kubelet's, up to 1,000 nodes; then "+
			"longer, up to 20s, to spare the API server)")
	flags.DurationVar(&s.statusInterval, "node-status-report-frequency", 5*time.Minute,
		"time between two status reports of a node whose status does not change")
	flags.DurationVar(&s.terminateAfter, "terminate-after", 0, "how long a pod takes to end after SIGTERM; at most its grace period")

	s.eviction = pressure.DefaultConfig()
	s.eviction.AddFlags(flags)
	flags.IntVar(&s.workers, "workers", 32, "maximum number of pod requests in flight")
}

func (s *nodesShape) runNodes(cmd *cobra.Command, to *connection) error {
	shape, err := s.parseShape("--count")
	if err != nil {
		return err
	}
	cfg, err := to.restConfig("nodes")
	if err != nil {
		return err
	}
	client, err := simnodes.Client(cfg)
	if err != nil {
		return err
	}
	ctx, stop := signals.Until(cmd.Context())
	defer stop()
	// They are of the cluster's version: kubelets newer than the API server are not supported. One
	// that does not answer yet is waited for by Run.
	if version, err := client.Discovery().ServerVersion(); err == nil {
		shape.Version = version.GitVersion
	}
	out := cmd.OutOrStdout()
	return simnodes.Run(ctx, client, simnodes.Options{
		Shape:   *shape,
		Workers: s.workers,
		Log:     newLog(cmd.ErrOrStderr()),
		Ready: func(nodes int, took time.Duration) {
			fmt.Fprintf(out, "ready %s (%.1fs)\n", describeNodes(nodes, s.zones), took.Seconds())
		},
	})
}

func newLog(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// parseShape checks the flags and puts them together. countFlag is the one that says how many
// nodes.
func (s *nodesShape) parseShape(countFlag string) (*kubelet.Shape, error) {
	switch {
	case s.count < 0:
		return nil, usagef("%s %d: must be 0 or more", countFlag, s.count)
	case s.zones < 0:
		return nil, usagef("--zones %d: must be 0 or more", s.zones)
	}

	if errs := validation.IsValidLabelValue(s.region); len(errs) > 0 {
		return nil, usagef("--region %q: %s", s.region, errs[0])
	}
	if errs := validation.IsDNS1123Subdomain(s.prefix + "1"); len(errs) > 0 {
		return nil, usagef("--name-prefix %q: %s", s.prefix, errs[0])
	}
	if s.workers < 1 {
		return nil, usagef("--workers %d: must be 1 or more", s.workers)
	}

	if s.statusInterval <= 0 {
		return nil, usagef("--node-status-report-frequency %s: must be more than 0", s.statusInterval)
	}
	if s.terminateAfter < 0 {
		return nil, usagef("--terminate-after %s: must be 0 or more", s.terminateAfter)
	}
	if _, err := s.eviction.Thresholds(); err != nil {
		return nil, usagef("%w", err)
	}

	renew := s.renewInterval
	switch {
	case renew == 0:
		renew = kubelet.RenewIntervalFor(s.count)
	case renew < time.Second || renew >= kubelet.LeaseDuration:
		return nil, usagef("--lease-renew-interval %s: must be between 1s and %s, the lease's duration", renew, kubelet.LeaseDuration)
	}

	capacity, err := s.parseCapacity()
	if err != nil {
		return nil, err
	}

	labels, err := parseLabels(s.labels)
	if err != nil {
		return nil, err
	}

	taints, err := parseTaints(s.taints)
	if err != nil {
		return nil, err
	}

	shape := &kubelet.Shape{
		Prefix: s.prefix, Count: s.count, Zones: s.zones, Region: s.region,
		Labels: labels, Taints: taints, Capacity: capacity, Version: currentVersion().Kubernetes,
		RenewInterval: renew, StatusInterval: s.statusInterval,
		TerminateAfter: s.terminateAfter, JobRunFor: time.Second, Eviction: s.eviction,
	}

	if most := shape.MaxCount(); s.count > most {
		return nil, usagef("%s %d: with %d pods each there are addresses for %d nodes", countFlag, s.count, s.pods, most)
	}
	return shape, nil
}

func (s *nodesShape) parseCapacity() (v1.ResourceList, error) {
	capacity := kubelet.DefaultCapacity()
	set := func(flag string, name v1.ResourceName, text string) error {
		quantity, err := resource.ParseQuantity(text)
		if err != nil || quantity.Sign() < 0 {
			return usagef("%s %q: must be a quantity such as 32, 500m or 64Gi", flag, text)
		}
		capacity[name] = quantity
		return nil
	}

	if err := set("--cpu", v1.ResourceCPU, s.cpu); err != nil {
		return nil, err
	}
	if err := set("--memory", v1.ResourceMemory, s.memory); err != nil {
		return nil, err
	}
	if s.pods < 0 || s.pods > 4096 {
		return nil, usagef("--pods %d: must be between 0 and 4096", s.pods)
	}

	capacity[v1.ResourcePods] = *resource.NewQuantity(int64(s.pods), resource.DecimalSI)
	for _, text := range s.resources {
		name, quantity, ok := strings.Cut(text, "=")
		if !ok || len(validation.IsQualifiedName(name)) > 0 {
			return nil, usagef("--resource %q: must be NAME=QUANTITY such as nvidia.com/gpu=8", text)
		}
		if err := set("--resource "+name+":", v1.ResourceName(name), quantity); err != nil {
			return nil, err
		}
	}

	return capacity, nil
}

func parseLabels(texts []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, usagef("--label %q: must be KEY=VALUE", text)
		}
		if errs := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(errs) > 0 {
			return nil, usagef("--label %q: %s", text, errs[0])
		}
		labels[key] = value
	}
	return labels, nil
}

func parseTaints(texts []string) ([]v1.Taint, error) {
	var taints []v1.Taint
	for _, text := range texts {
		spec, effect, ok := strings.Cut(text, ":")
		key, value, _ := strings.Cut(spec, "=")
		if !ok || key == "" {
			return nil, usagef("--taint %q: must be KEY[=VALUE]:EFFECT such as dedicated=gpu:NoSchedule", text)
		}
		if errs := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(errs) > 0 {
			return nil, usagef("--taint %q: %s", text, errs[0])
		}
		switch v1.TaintEffect(effect) {
		case v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute:
		default:
			return nil, usagef("--taint %q: effect %q: must be NoSchedule, PreferNoSchedule or NoExecute", text, effect)
		}
		taints = append(taints, v1.Taint{Key: key, Value: value, Effect: v1.TaintEffect(effect)})
	}

	return taints, nil
}
