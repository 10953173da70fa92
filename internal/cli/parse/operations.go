// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package parse

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/provision"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
	"github.com/berth-k8s/berth/internal/node/pressure"
	"github.com/berth-k8s/berth/internal/usage"
)

// operation is an operation of what-if.
type operation struct {
	word    string
	ofNodes bool   // the operation accepts only nodes
	names   []Kind // kinds accepted by other operations
	flags   func(*parts, *pflag.FlagSet)
	read    func(*parts, *whatif.Step) error
}

var operations = []operation{
	{word: "taint", ofNodes: true, flags: (*parts).taintFlags, read: (*parts).readTaint},
	{word: "untaint", ofNodes: true, flags: (*parts).taintFlags, read: (*parts).readTaint},
	{word: "cordon", ofNodes: true, flags: (*parts).selectorFlag, read: (*parts).readNodes},
	{word: "uncordon", ofNodes: true, flags: (*parts).selectorFlag, read: (*parts).readNodes},
	{word: "drain", ofNodes: true, flags: (*parts).drainFlags, read: (*parts).readDrain},
	{word: "remove-node", ofNodes: true, read: (*parts).readNodes},
	{word: "add-nodes", flags: (*parts).likeFlag, read: (*parts).readAddNodes},
	{word: "add-pods", flags: (*parts).addPodsFlags, read: (*parts).readAddPods},
	{word: "apply", flags: func(p *parts, flags *pflag.FlagSet) { AddFiles(flags, &p.files, "", "") }, read: (*parts).readApply},
	{word: "scale", names: Scalable, flags: (*parts).replicasFlag, read: (*parts).readScale},
	{word: "delete", names: PodsAndWorkloads, read: (*parts).readDelete},
	{word: "evict", names: []Kind{Pod}, read: (*parts).readEvict},
	{word: "rebalance", read: (*parts).readRebalance},
	{word: "pressure", ofNodes: true, flags: (*parts).pressureFlags, read: (*parts).readPressure},
	{word: "use", names: []Kind{Pod}, flags: (*parts).amountFlags, read: (*parts).readUse},
	{word: "provision", flags: (*parts).provisionFlags, read: (*parts).readProvision},
}

// parts holds the flags and arguments of one operation.
type parts struct {
	word      string
	operation simulate.Operation
	flags     *pflag.FlagSet
	space     *string // namespace of the named objects; nil: no namespaced objects

	nodes            simulate.Nodes
	rest             []string // arguments other than nodes
	model            string
	max, overwrite   bool
	guard            bool
	choose, replicas int
	files            []string
	drain            simulate.Drain
	memory, disk     string
	eviction         pressure.Config
	timeout          time.Duration
	catalog          []string
	scored, replace  bool
	spotShare        float64
}

func (o *operation) newFlags(p *parts) *pflag.FlagSet {
	flags := pflag.NewFlagSet(o.word, pflag.ContinueOnError)
	if p.flags = flags; o.flags != nil {
		o.flags(p, flags)
	}
	return flags
}

// sort separates the nodes among the arguments from the rest.
func (p *parts) sort(o *operation, args []string) {
	if o.ofNodes && len(args) > 1 && Node.IsWord(args[0]) {
		args = args[1:] // kubectl's form: taint nodes n1 k=v:NoExecute
	}
	for _, arg := range args {
		if o.ofNodes && Node.OfKind(arg) {
			_, name, _ := strings.Cut(arg, "/")
			p.nodes.Nodes = append(p.nodes.Nodes, name)
		} else {
			p.rest = append(p.rest, arg)
		}
	}
}

func (p *parts) selectorFlag(flags *pflag.FlagSet) {
	flags.StringVarP(&p.nodes.Selector, "selector", "l", "", "the nodes with these labels")
}

// takeNodes accepts bare node names, like kubectl, and requires at least one node.
func (p *parts) takeNodes() error {
	for _, arg := range p.rest {
		name, err := Node.NameOf(arg)
		if err != nil {
			return usage.Errorf("%s %w", p.word, err)
		}
		p.nodes.Nodes = append(p.nodes.Nodes, name)
	}
	if p.rest = nil; p.namesNone() {
		return usage.Errorf("%s: no node specified: write %s node/NAME", p.word, p.word)
	}
	return nil
}

func (p *parts) namesNone() bool {
	return len(p.nodes.Nodes) == 0 && p.nodes.Selector == "" && !p.nodes.All
}

func (p *parts) readNodes(step *whatif.Step) error {
	of := map[string]**simulate.Nodes{"cordon": &step.Cordon, "uncordon": &step.Uncordon, "remove-node": &step.RemoveNode}
	*of[p.word] = &p.nodes
	return p.takeNodes()
}

func (p *parts) taintFlags(flags *pflag.FlagSet) {
	p.selectorFlag(flags)
	flags.BoolVar(&p.nodes.All, "all", false, "all nodes")
	flags.BoolVar(&p.overwrite, "overwrite", false, "")
}

func (p *parts) readTaint(step *whatif.Step) error {
	if p.nodes.Selector == "" && !p.nodes.All {
		p.bareNodes()
	}
	if p.namesNone() {
		return usage.Errorf("%s: specify a node and a taint: write %s node/NAME key=value:NoExecute", p.word, p.word)
	}
	if len(p.rest) == 0 {
		return usage.Errorf("%s: no taint specified: write %s node/NAME key=value:NoExecute", p.word, p.word)
	}

	tainting := &simulate.Tainting{Nodes: p.nodes, Taints: p.rest, Overwrite: p.overwrite}
	if p.word == "untaint" {
		step.Untaint = tainting
		return nil
	}
	step.Taint = tainting
	_, err := rules.ParseTaintChange(p.rest)
	return usage.Of(err)
}

// bareNodes moves the bare node names that precede the taints, as in kubectl, to p.nodes. For
// untaint, a bare key is a taint, so only the first word can be a node name, and only if no node is
// given as node/NAME.
func (p *parts) bareNodes() {
	named := len(p.nodes.Nodes) > 0
	for len(p.rest) > 1 && !strings.ContainsAny(p.rest[0], "=:") && !strings.HasSuffix(p.rest[0], "-") {
		if p.word == "untaint" && (named || len(p.nodes.Nodes) > 0) {
			return
		}
		p.nodes.Nodes, p.rest = append(p.nodes.Nodes, p.rest[0]), p.rest[1:]
	}
}

func (p *parts) drainFlags(flags *pflag.FlagSet) {
	p.selectorFlag(flags)
	flags.IntVar(&p.choose, "choose", 0, "the nodes that are cheapest to drain")
	flags.BoolVar(&p.drain.IgnoreDaemonSets, "ignore-daemonsets", false, "")
	flags.BoolVar(&p.drain.DeleteEmptyDirData, "delete-emptydir-data", false, "")
	flags.BoolVar(&p.drain.Force, "force", false, "")
	flags.BoolVar(&p.drain.DisableEviction, "disable-eviction", false, "")
	flags.StringVar(&p.drain.PodSelector, "pod-selector", "", "")
	flags.BoolVar(&p.guard, "guard-evictions", false, "")
	flags.DurationVar(&p.timeout, "timeout", 0, "")
	flags.Int("grace-period", -1, "") // ignored: pods leave together in a forecast
	flags.Int64("chunk-size", 0, "")
	flags.Int("skip-wait-for-delete-timeout", 0, "")
}

func (p *parts) readDrain(step *whatif.Step) error {
	switch missing := p.takeNodes(); {
	case p.choose < 1 && p.flags.Changed("choose"):
		return usage.Errorf("drain --choose %d: must be 1 or more", p.choose)
	case p.timeout < 0:
		return usage.Errorf("drain --timeout %s: must not be negative", p.timeout)
	case p.choose > 0 && len(p.nodes.Nodes) > 0:
		return usage.Errorf("drain: specify nodes, or let --choose select them")
	case p.choose == 0 && missing != nil:
		return missing
	}

	p.drain.Nodes = p.nodes
	if p.flags.Changed("guard-evictions") {
		p.drain.GuardEvictions = &p.guard
	}
	if p.timeout > 0 {
		p.drain.Timeout = &metav1.Duration{Duration: p.timeout}
	}
	if step.Operation.Drain = &p.drain; p.choose > 0 {
		*step = whatif.Step{Choose: p.choose, Drain: &p.drain}
	}
	return nil
}

func (p *parts) likeFlag(flags *pflag.FlagSet) { flags.StringVar(&p.model, "like", "", "") }

func (p *parts) readAddNodes(step *whatif.Step) error {
	count, err := p.parseCount()
	if err != nil {
		return err
	}
	like, err := Node.NameOf(p.model)
	if err != nil {
		return usage.Errorf("add-nodes --like %w", err)
	}
	step.AddNodes = &simulate.AddNodes{Count: count, Like: like}
	return nil
}

func (p *parts) addPodsFlags(flags *pflag.FlagSet) {
	p.likeFlag(flags)
	flags.BoolVar(&p.max, "max", false, "")
}

func (p *parts) readAddPods(step *whatif.Step) (err error) {
	step.AddPods = &simulate.AddPods{Max: p.max, Like: p.model}
	p.space = &step.AddPods.Namespace
	switch {
	case p.model == "":
		return usage.Errorf("add-pods: no model specified: use --like pod/NAME")
	case p.max && len(p.rest) > 0:
		return usage.Errorf("add-pods %q: a number, or --max for as many as fit", p.rest[0])
	case !p.max:
		step.AddPods.Count, err = p.parseCount()
	}
	return err
}

// parseCount parses a single number.
func (p *parts) parseCount() (int, error) {
	if len(p.rest) != 1 || p.model == "" {
		like := strings.TrimSuffix(strings.TrimPrefix(p.word, "add-"), "s")
		return 0, usage.Errorf("%s: write %s N --like %s/NAME", p.word, p.word, like)
	}
	n, err := strconv.Atoi(p.rest[0])
	if err != nil || n < 1 {
		return 0, usage.Errorf("%s %q: must be a number, 1 or more", p.word, p.rest[0])
	}
	return n, nil
}

func (p *parts) readApply(step *whatif.Step) error {
	if step.Deploy = p.files; len(p.files) == 0 || len(p.rest) > 0 {
		return usage.Errorf("apply: nothing specified: use apply -f FILE or apply -k DIR")
	}
	return nil
}

// readObject parses one TYPE/NAME, also written TYPE NAME; it returns "" for anything else.
func (p *parts) readObject() string {
	if len(p.rest) == 2 && !strings.Contains(p.rest[0], "/") {
		return p.rest[0] + "/" + p.rest[1]
	}
	if len(p.rest) != 1 {
		return ""
	}
	return p.rest[0]
}

func (p *parts) replicasFlag(flags *pflag.FlagSet) { flags.IntVar(&p.replicas, "replicas", -1, "") }

func (p *parts) readScale(step *whatif.Step) error {
	step.Scale = &simulate.Scale{Workload: p.readObject(), Replicas: p.replicas}
	if p.space = &step.Scale.Namespace; step.Scale.Workload == "" || p.replicas < 0 {
		return usage.Errorf("scale: write scale deployment/NAME --replicas N")
	}
	return nil
}

func (p *parts) readDelete(step *whatif.Step) error {
	step.Delete = &simulate.Delete{Object: p.readObject()}
	if p.space = &step.Delete.Namespace; step.Delete.Object == "" {
		return usage.Errorf("delete: write delete pod/NAME")
	}
	return nil
}

func (p *parts) readEvict(step *whatif.Step) error {
	pods, err := Pod.NamesOf(p.rest)
	if err != nil || len(pods) == 0 {
		return cmp.Or(err, usage.Errorf("evict: write evict pod/NAME"))
	}
	step.Evict = &simulate.Evict{Pods: pods}
	p.space = &step.Evict.Namespace
	return nil
}

func (p *parts) readRebalance(step *whatif.Step) error {
	if _, err := rebalance.ReadGoals(p.rest, ""); err != nil {
		return usage.Errorf("rebalance: %w", err)
	}
	step.Rebalance = &simulate.Rebalance{Goals: p.rest}
	p.space = &step.Rebalance.Namespace
	return nil
}

func (p *parts) amountFlags(flags *pflag.FlagSet) {
	flags.StringVar(&p.memory, "memory", "", "")
	flags.StringVar(&p.disk, "ephemeral-storage", "", "")
}

func (p *parts) readUse(step *whatif.Step) error {
	step.Use = &simulate.Use{Pod: p.readObject(), Memory: p.memory, EphemeralStorage: p.disk}
	if p.space = &step.Use.Namespace; step.Use.Pod == "" || p.memory == "" && p.disk == "" {
		return usage.Errorf("use: write use pod/NAME --memory 500Mi")
	}
	return nil
}

func (p *parts) pressureFlags(flags *pflag.FlagSet) {
	p.selectorFlag(flags)
	p.amountFlags(flags)
	p.eviction = pressure.DefaultConfig()
	p.eviction.AddFlags(flags)
}

func (p *parts) readPressure(step *whatif.Step) error {
	if err := p.takeNodes(); err != nil {
		return err
	}
	if p.memory == "" && p.disk == "" {
		return usage.Errorf("pressure: use pressure node/NAME --memory 200Mi")
	}
	c := p.eviction
	step.Pressure = &simulate.Pressure{
		Nodes: p.nodes, Memory: p.memory, EphemeralStorage: p.disk,
		EvictionHard: c.Hard, EvictionSoft: c.Soft, EvictionSoftGracePeriod: c.SoftGrace, EvictionMinimumReclaim: c.MinimumReclaim,
		EvictionPressureTransitionPeriod: &metav1.Duration{Duration: c.Transition}, EvictionMaxPodGracePeriod: &c.MaxPodGrace,
	}
	return nil
}

func (p *parts) provisionFlags(flags *pflag.FlagSet) {
	flags.StringSliceVar(&p.catalog, "catalog", nil, "")
	flags.BoolVar(&p.scored, "scored", false, "")
	flags.BoolVar(&p.replace, "replace", false, "")
	flags.Float64Var(&p.spotShare, "spot-share", 1, "") // the default treats spot like other capacity
}

func (p *parts) readProvision(step *whatif.Step) error {
	if len(p.rest) > 0 {
		return usage.Errorf("provision %q: unexpected argument: nodes to buy are specified with --catalog FILE", p.rest[0])
	}
	*step = whatif.Step{Catalog: &provision.Catalog{}, Scored: p.scored, Replace: p.replace}
	switch {
	case !p.flags.Changed("spot-share"):
	case p.spotShare >= 0 && p.spotShare <= 1:
		step.Provision.Spot = &p.spotShare
	default:
		return usage.Errorf("provision --spot-share %v: must be from 0 to 1", p.spotShare)
	}
	return nil
}
