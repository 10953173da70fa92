package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/controller/rebalance/live"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/lead"
)

// drain is what the flags of berth drain say.
type drain struct {
	question    // for completion, the connection and the configuration
	options     execute.DrainOptions
	selector    string
	podSelector string
	grace       int64
	overdue     int
	dryRun      string

	roll           string // the selector of the nodes to roll; "": none
	maxUnavailable string
	uncordonWhen   string
	waitForNew     bool
	restart        bool
}

func newDrainCommand() *cobra.Command {
	d := &drain{question: question{userAgent: "berth-drain"}}
	cmd := &cobra.Command{
		Use:     "drain NODE...",
		GroupID: groupOthers,
		Short:   "Empty nodes as kubectl drain does, with the landing places decided first",
		Long: `Cordon nodes and evict their pods, with kubectl's flags and kubectl's rules for what
is evicted. Before anything is changed, the engine decides where the successor of each
pod lands, and the plan is printed. The drain does not begin if a pod would find no
other node (--allow-pending goes on nevertheless), or if kubectl would refuse.

An eviction follows when the successor of the pod before has a node, on a plan that is
made anew whenever something lands elsewhere; pods terminate side by side, those of
StatefulSets one after the other. Pods whose disruption budget does not allow them to
leave yet are evicted as soon as it does, those with the longest grace period first.

With --surge, a pod of a Deployment or ReplicaSet leaves only when one more replica is
ready elsewhere: also the only one, and one whose budget allows no disruption. The
workload is scaled up by one, the pod gets the lowest deletion cost, and the scale is
put back, so that the pod is the one removed. The plan says where that is not possible
(an autoscaler, a rollout, a volume for one node, Recreate), and those pods are evicted.

With --roll SELECTOR the nodes with these labels are rolled: in turn, zone by zone, each
is drained, waited for (--uncordon-when, --wait-for-new) and opened again. The plan for
all of them is made and printed first. Nodes with a later turn are cordoned meanwhile, so
that pods do not land where they would have to leave again. How far each node is stands
in its annotation berth.dev/roll: the same command goes on after it was stopped or killed.

Berth's scheduler keeps the room of each successor: a Lease in kube-system asks it to.
Nothing else is written down but the label berth.dev/surge on a workload that has one
more replica. After Ctrl-C, a timeout or kill -9 the nodes stay cordoned, and the same
command goes on; what a killed one has left scaled up is put back first.`,
		Example: `  berth drain node-1 --ignore-daemonsets
  berth drain node-1 node-2 --ignore-daemonsets --delete-emptydir-data --timeout 10m
  berth drain node-1 --ignore-daemonsets --surge
  berth drain -l pool=old --dry-run
  berth drain --roll pool=web --uncordon-when Ready --ignore-daemonsets --surge
  berth drain --roll pool=web --wait-for-new --max-unavailable 10% --ignore-daemonsets`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			if strings.Contains(toComplete, "/") {
				return d.completeRef(cmd, []subject{nodeSubject}, lastArg(args), toComplete, "")
			}
			return withPrefix(d.namesOf(cmd, nodeSubject, ""), toComplete), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: d.runDrain,
	}
	flags := cmd.Flags()
	o := &d.options
	flags.BoolVar(&o.IgnoreDaemonSets, "ignore-daemonsets", false,
		"leave pods of DaemonSets alone, instead of refusing to begin because of them")
	flags.BoolVar(&o.DeleteEmptyDirData, "delete-emptydir-data", false, "evict pods with emptyDir volumes, too: their data is lost")
	flags.BoolVar(&o.Force, "force", false, "evict pods without a controller, too: they are lost")
	flags.BoolVar(&o.Delete, "disable-eviction", false, "delete pods instead of evicting them, past disruption budgets")
	flags.BoolVar(&o.AllowPending, "allow-pending", false, "go on although successors find no other node")
	flags.BoolVar(&o.Surge, "surge", false,
		"have one more replica ready before a pod of a Deployment or ReplicaSet leaves, where that is possible")
	flags.DurationVar(&o.Timeout, "timeout", 0, "give up after this time; 0: never")
	flags.Int64Var(&d.grace, "grace-period", -1, "seconds that each pod has to terminate; negative: what the pod says")
	flags.IntVar(&d.overdue, "skip-wait-for-delete-timeout", 0,
		"do not wait for pods that were to be gone more than this many seconds ago; 0: wait")
	flags.Int64("chunk-size", 0, "as in kubectl, without effect: the cluster is read as a whole, in chunks")
	flags.StringVar(&d.podSelector, "pod-selector", "", "only pods with these labels")
	flags.StringVarP(&d.selector, "selector", "l", "", "the nodes with these labels, instead of names")
	flags.StringVar(&d.dryRun, "dry-run", "none",
		"client: print the plan and change nothing; server: also ask the API server whether it would evict each pod; none")
	flags.Lookup("dry-run").NoOptDefVal = "client"
	d.addRollFlags(cmd)
	d.addSchedulerFlags(flags)
	d.connection.addFlags(flags)
	d.connection.to.AddKubectlFlags(flags)
	completeChoices(cmd, "dry-run", "none", "client", "server")
	d.completeFlags(cmd, nil)
	return cmd
}

func (d *drain) runDrain(cmd *cobra.Command, args []string) error {
	if d.roll != "" {
		return d.runRoll(cmd, args)
	}
	if err := d.checkNodes(cmd, args); err != nil {
		return err
	}
	if flag := d.rollFlag(cmd); flag != "" {
		return usagef("--%s: goes with --roll only", flag)
	}
	client, running, err := d.prepareDrain(cmd, args)
	if err != nil {
		return err
	}
	o := &d.options

	ctx, cancel := context.WithCancel(klog.NewContext(cmd.Context(), klog.Logger{})) // what it does is told in lines of its own
	defer cancel()
	meter := startMeter(cmd.ErrOrStderr())
	meter.beginStep("reading the cluster and planning")
	defer meter.stop()
	var plan *rebalance.Draining
	var ended *execute.DrainDone
	drainer := live.NewDrainer(client, running.Profiles, *o, func(a execute.DrainTold) {
		meter.stop()
		if a.Plan != nil {
			plan = a.Plan
			_ = plan.Write(cmd.OutOrStdout(), o.Nodes) // whoever cannot read it still wants the drain
		} else {
			tellLine(cmd.OutOrStdout(), a.Line())
		}
	}, func(a execute.DrainDone) { meter.stop(); ended = &a; cancel() })
	returned, err := untilTwice(cmd.ErrOrStderr(), "no further pod is evicted; again to end at once", drainer.Stop,
		cancel, func() error { return drainer.Run(ctx) })
	cancel()
	switch {
	case err != nil:
		return err
	case !returned || ended == nil:
		return fmt.Errorf("ended at once: the nodes stay cordoned, and the same command goes on")
	case ended.Stopped != "" && (plan == nil || len(plan.Refused) > 0 && ended.Evicted == 0):
		return fmt.Errorf("not drained: %s", ended.Stopped)
	case ended.Stopped != "" && ended.Left+ended.Ending == 0:
		return fmt.Errorf("the nodes are empty, but the drain is not done: %s", ended.Stopped)
	case ended.Stopped != "":
		return fmt.Errorf("not drained: %s; %s evicted, %s left, %s not ended",
			ended.Stopped, answer.Count(ended.Evicted, "pod"), answer.Count(ended.Left, "pod"), answer.Count(ended.Ending, "pod"))
	case d.dryRun == "server":
		return d.askEvictions(cmd.Context(), cmd.OutOrStdout(), client, plan)
	case o.DryRun:
		fmt.Fprintln(cmd.OutOrStdout(), "Nothing was changed (dry run).")
		return nil
	}
	for _, name := range o.Nodes {
		fmt.Fprintf(cmd.OutOrStdout(), "node/%s drained\n", name)
	}
	return nil
}

// prepareDrain checks the flags, connects, and finds out which nodes are meant and how pods are
// placed.
func (d *drain) prepareDrain(cmd *cobra.Command, args []string) (kubernetes.Interface, *config.Running, error) {
	switch {
	case d.options.Timeout < 0:
		return nil, nil, usagef("--timeout %s: must not be negative", d.options.Timeout)
	case d.options.Surge && d.options.Delete:
		return nil, nil, usagef("--surge and --disable-eviction: only one of them")
	case d.overdue < 0:
		return nil, nil, usagef("--skip-wait-for-delete-timeout %d: must not be negative", d.overdue)
	}
	pods, err := labels.Parse(d.podSelector)
	if err != nil {
		return nil, nil, usagef("--pod-selector %q: %w", d.podSelector, err)
	}
	if err := d.readConfig(cmd); err != nil {
		return nil, nil, err
	}
	cfg, err := d.connection.restConfig(d.userAgent)
	if err != nil {
		return nil, nil, err
	}
	cfg.QPS, cfg.Burst = 50, 100 // a surge takes six requests; client-go's 5 a second made drains wait for it
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, nil, err
	}

	o := &d.options
	o.Pods, o.DryRun, o.Overdue = pods, d.dryRun != "none", time.Duration(d.overdue)*time.Second
	if d.grace >= 0 {
		o.Grace = &d.grace
	}
	if o.Nodes, err = d.selectNodes(cmd.Context(), client, args); err != nil {
		return nil, nil, connect.Reach(err)
	}
	running, err := d.placingConfig(cmd, client)
	return client, running, err
}

// placingConfig is the one that landing places are decided by. A drain goes on without knowing it
// only where it does not depend on them: --allow-pending, or a dry run, whose first line says what
// was assumed.
func (d *drain) placingConfig(cmd *cobra.Command, client kubernetes.Interface) (*config.Running, error) {
	if !d.options.AllowPending && !d.options.DryRun {
		return d.provingConfig(cmd, client)
	}
	leases, err := lead.List(cmd.Context(), client.CoordinationV1())
	if err != nil && !snapshot.Optional(err) {
		return nil, connect.Reach(err)
	}
	r, err := d.runningConfig(cmd, leases, time.Now())
	if err != nil {
		return nil, err
	}
	return r, d.writeOpening(cmd.OutOrStdout())
}

// selectNodes are those that are named, or that the selector selects.
func (d *drain) selectNodes(ctx context.Context, client kubernetes.Interface, args []string) (names []string, err error) {
	if d.selector != "" {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: d.selector})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("no node has the labels %s", d.selector)
		}
		return names, nil
	}

	if names, err = namesOf(args, nodeWords); err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return nil, err
		}
	}

	return names, nil
}

// namesOf are the names that arguments have as n1, node/n1 or node n1, each once.
func namesOf(args, kinds []string) (names []string, err error) {
	if len(args) > 1 && slices.Contains(kinds, args[0]) {
		args = args[1:]
	}
	for _, arg := range args {
		name, err := splitName(arg, kinds...)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// askEvictions asks the API server whether it would evict the pods as things are now. It is an
// error if it would not.
func (d *drain) askEvictions(ctx context.Context, out io.Writer, client kubernetes.Interface, plan *rebalance.Draining) error {
	refused := 0
	for i := range plan.Pods {
		p := &plan.Pods[i]
		options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID)),
			GracePeriodSeconds: d.options.Grace, DryRun: []string{metav1.DryRunAll}}
		if err := live.Evict(ctx, client, p.Namespace, p.Name, &options, d.options.Delete); err != nil {
			printVisible(out, "%s/%s: would be refused: %v", p.Namespace, p.Name, err)
			refused++
		}
	}
	fmt.Fprintln(out, "Nothing was changed (server dry run).")
	if refused > 0 {
		return fmt.Errorf("the API server would refuse to evict %d of %s", refused, answer.Count(len(plan.Pods), "pod"))
	}
	return nil
}
