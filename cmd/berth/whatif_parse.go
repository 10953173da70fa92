package main

import (
	"cmp"
	"errors"
	"slices"
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
)

// operations are the words that begin one.
var operations = []string{"taint", "untaint", "cordon", "uncordon", "drain", "remove-node", "add-nodes", "add-pods",
	"apply", "scale", "delete", "evict", "rebalance", "pressure", "use", "provision"}

// parseSteps cuts the arguments at the words that begin operations, and reads each part with the
// flags that may stand there.
func (f *forecast) parseSteps(args []string) ([]whatif.Step, error) {
	first := slices.IndexFunc(args, isOperation)
	if first < 0 {
		first = len(args)
	}

	flags := pflag.NewFlagSet("what-if", pflag.ContinueOnError)
	f.addFlags(flags)
	if err := flags.Parse(args[:first]); err != nil {
		return nil, wrongUsage(err, f.path)
	}
	if flags.NArg() > 0 {
		return nil, usagef("%q is no operation: must be one of %s", flags.Arg(0), strings.Join(operations, ", "))
	}

	var steps []whatif.Step
	for first < len(args) {
		next := first + 1
		for next < len(args) && !isOperation(args[next]) {
			next++
		}
		step, err := f.parseOne(args[first], args[first+1:next])
		if err != nil {
			return nil, err
		}
		steps = append(steps, *step)
		first = next
	}

	return steps, nil
}

// ofNodes tells whether an operation names nodes and nothing else.
func ofNodes(word string) bool {
	return slices.Contains([]string{"taint", "untaint", "cordon", "uncordon", "drain", "remove-node", "pressure"}, word)
}

func isOperation(word string) bool { return slices.Contains(operations, word) }

func wrongUsage(err error, path string) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	return usagef("%s (see %s --help)", plainFault(err), path)
}

// parts are what the flags and arguments of one operation say.
type parts struct {
	nodes     simulate.Nodes
	rest      []string
	like      string
	max       bool
	overwrite bool
	choose    int
	replicas  int
	files     []string
	drain     simulate.Drain
	memory    string
	disk      string
	eviction  pressure.Config
	timeout   time.Duration
	catalog   []string
	scored    bool
	replace   bool
	spotShare float64
}

func (f *forecast) parseOne(word string, args []string) (*whatif.Step, error) {
	flags := pflag.NewFlagSet(word, pflag.ContinueOnError)
	p := &parts{replicas: -1}
	// What may stand anywhere keeps what was said before.
	now := *f
	general := pflag.NewFlagSet(word, pflag.ContinueOnError)
	f.addFlags(general)
	*f = now
	general.VisitAll(func(flag *pflag.Flag) {
		if word != "apply" || flag.Name != "filename" && flag.Name != "kustomize" {
			flags.AddFlag(flag)
		}
	})
	p.addFlags(word, flags)
	if err := flags.Parse(args); err != nil {
		return nil, wrongUsage(err, f.path)
	}
	for i, arg := range flags.Args() {
		if i == 0 && ofNodes(word) && slices.Contains(nodeWords, arg) && flags.NArg() > 1 {
			continue // kubectl's own way: taint nodes n1 k=v:NoExecute
		}
		if kind, name, ok := strings.Cut(arg, "/"); ok && ofNodes(word) && slices.Contains(nodeWords, kind) {
			p.nodes.Nodes = append(p.nodes.Nodes, name)
		} else {
			p.rest = append(p.rest, arg)
		}
	}
	step, err := p.makeStep(word)
	if err == nil {
		f.catalog = append(f.catalog, p.catalog...)
		step.Words = operationWords(word, flags, general)
	}
	return step, err
}

// operationWords are those of the operation, without the flags that may stand anywhere.
func operationWords(word string, flags, general *pflag.FlagSet) string {
	list := append([]string{word}, flags.Args()...)
	flags.Visit(func(flag *pflag.Flag) {
		switch {
		case general.Lookup(flag.Name) == flag:
		case flag.Value.Type() == "bool" && flag.Value.String() == "true":
			list = append(list, "--"+flag.Name)
		case flag.Value.Type() == "bool":
			list = append(list, "--"+flag.Name+"="+flag.Value.String())
		default:
			list = append(list, "--"+flag.Name, strings.Trim(flag.Value.String(), "[]"))
		}
	})
	return strings.Join(list, " ")
}

func (p *parts) addFlags(word string, flags *pflag.FlagSet) {
	switch word {
	case "taint", "untaint", "cordon", "uncordon", "drain", "pressure":
		flags.StringVarP(&p.nodes.Selector, "selector", "l", "", "the nodes with these labels")
	}
	switch word {
	case "taint", "untaint":
		flags.BoolVar(&p.nodes.All, "all", false, "all nodes")
		flags.BoolVar(&p.overwrite, "overwrite", false, "")
	case "drain":
		flags.IntVar(&p.choose, "choose", 0, "the nodes that cost least to lose")
		flags.BoolVar(&p.drain.IgnoreDaemonSets, "ignore-daemonsets", false, "")
		flags.BoolVar(&p.drain.DeleteEmptyDirData, "delete-emptydir-data", false, "")
		flags.BoolVar(&p.drain.Force, "force", false, "")
		flags.BoolVar(&p.drain.DisableEviction, "disable-eviction", false, "")
		flags.StringVar(&p.drain.PodSelector, "pod-selector", "", "")
		flags.DurationVar(&p.timeout, "timeout", 0, "")
		flags.Int("grace-period", -1, "") // pods leave at once in a forecast
		flags.Int64("chunk-size", 0, "")
		flags.Int("skip-wait-for-delete-timeout", 0, "")
	case "add-nodes":
		flags.StringVar(&p.like, "like", "", "")
	case "add-pods":
		flags.StringVar(&p.like, "like", "", "")
		flags.BoolVar(&p.max, "max", false, "")
	case "apply":
		addFiles(flags, &p.files, "", "")
	case "pressure", "use":
		flags.StringVar(&p.memory, "memory", "", "")
		flags.StringVar(&p.disk, "ephemeral-storage", "", "")
		if word == "pressure" {
			p.eviction = pressure.DefaultConfig()
			p.eviction.AddFlags(flags)
		}
	case "scale":
		flags.IntVar(&p.replicas, "replicas", -1, "")
	case "provision":
		flags.StringSliceVar(&p.catalog, "catalog", nil, "")
		flags.BoolVar(&p.scored, "scored", false, "")
		flags.BoolVar(&p.replace, "replace", false, "")
		flags.Float64Var(&p.spotShare, "spot-share", anyShare, "")
	}
}

// anyShare is the default of --spot-share: spot is like all other capacity.
const anyShare = -1

// makeStep makes the operation of what was said.
func (p *parts) makeStep(word string) (*whatif.Step, error) {
	op := &simulate.Operation{}
	switch word {
	case "taint", "untaint", "cordon", "uncordon", "drain", "remove-node", "pressure":
		return p.onNodes(word, op)
	case "add-nodes":
		count, err := p.parseCount(word)
		if err != nil {
			return nil, err
		}
		like, err := splitName(p.like, nodeWords...)
		if err != nil {
			return nil, err
		}
		op.AddNodes = &simulate.AddNodes{Count: count, Like: like}
	case "add-pods":
		op.AddPods = &simulate.AddPods{Max: p.max, Like: p.like}
		if p.like == "" {
			return nil, usagef("add-pods: say which pod they are like: --like pod/NAME")
		}
		switch {
		case p.max && len(p.rest) > 0:
			return nil, usagef("add-pods %q: a number, or --max for as many as fit", p.rest[0])
		case !p.max:
			count, err := p.parseCount(word)
			if err != nil {
				return nil, err
			}
			op.AddPods.Count = count
		}
	case "apply":
		if len(p.files) == 0 || len(p.rest) > 0 {
			return nil, usagef("apply: say what: apply -f FILE or apply -k DIR")
		}
		op.Deploy = p.files
	case "scale":
		if p.joinReference(); len(p.rest) != 1 || p.replicas < 0 {
			return nil, usagef("scale: write scale deployment/NAME --replicas N")
		}
		op.Scale = &simulate.Scale{Workload: p.rest[0], Replicas: p.replicas}
	case "use":
		if p.joinReference(); len(p.rest) != 1 || p.memory == "" && p.disk == "" {
			return nil, usagef("use: write use pod/NAME --memory 500Mi")
		}
		op.Use = &simulate.Use{Pod: p.rest[0], Memory: p.memory, EphemeralStorage: p.disk}
	case "provision":
		if len(p.rest) > 0 {
			return nil, usagef("provision %q: what can be bought is named with --catalog FILE", p.rest[0])
		}
		step := &whatif.Step{Catalog: &provision.Catalog{}, Scored: p.scored, Replace: p.replace}
		switch {
		case p.spotShare == anyShare:
		case p.spotShare >= 0 && p.spotShare <= 1:
			step.Spot = &p.spotShare
		default:
			return nil, usagef("provision --spot-share %v: must be from 0 to 1", p.spotShare)
		}
		return step, nil
	case "delete":
		if p.joinReference(); len(p.rest) != 1 {
			return nil, usagef("delete: write delete pod/NAME")
		}
		op.Delete = &simulate.Delete{Object: p.rest[0]}
	case "evict":
		pods, err := namesOf(p.rest, podWords)
		if err != nil || len(pods) == 0 {
			return nil, cmp.Or(err, usagef("evict: write evict pod/NAME"))
		}
		op.Evict = &simulate.Evict{Pods: pods}
	}

	if word == "rebalance" {
		if _, err := rebalance.ReadGoals(p.rest, ""); err != nil {
			return nil, usagef("rebalance: %w", err)
		}
		op.Rebalance = &simulate.Rebalance{Goals: p.rest}
	}
	return &whatif.Step{Operation: op}, nil
}

// parseCount reads the number that stands alone.
func (p *parts) parseCount(word string) (int, error) {
	if len(p.rest) != 1 || p.like == "" {
		return 0, usagef("%s: write %s N --like %s/NAME", word, word, strings.TrimSuffix(strings.TrimPrefix(word, "add-"), "s"))
	}
	n, err := strconv.Atoi(p.rest[0])
	if err != nil || n < 1 {
		return 0, usagef("%s %q: must be a number from 1 on", word, p.rest[0])
	}
	return n, nil
}

func (p *parts) onNodes(word string, op *simulate.Operation) (*whatif.Step, error) {
	if word != "taint" && word != "untaint" {
		p.nodes.Nodes = append(p.nodes.Nodes, p.rest...) // kubectl takes bare names
	} else if p.nodes.Selector == "" && !p.nodes.All {
		p.bareNodes(word)
	}
	switch {
	case p.choose < 0:
		return nil, usagef("drain --choose %d: must be 1 or more", p.choose)
	case p.timeout < 0:
		return nil, usagef("drain --timeout %s: must not be negative", p.timeout)
	}
	p.drain.Nodes = p.nodes
	if p.timeout > 0 {
		p.drain.Timeout = &metav1.Duration{Duration: p.timeout}
	}
	if word == "drain" && p.choose > 0 {
		if len(p.nodes.Nodes) > 0 {
			return nil, usagef("drain: name nodes, or have them chosen with --choose")
		}
		return &whatif.Step{Choose: p.choose, Drain: &p.drain}, nil
	}
	none := len(p.nodes.Nodes) == 0 && p.nodes.Selector == "" && !p.nodes.All
	switch {
	case none && (word == "taint" || word == "untaint"):
		return nil, usagef("%s: name a node and a taint: write %s node/NAME key=value:NoExecute", word, word)
	case none:
		return nil, usagef("%s: no node is named: write %s node/NAME", word, word)
	}
	switch word {
	case "taint", "untaint":
		tainting := &simulate.Tainting{Nodes: p.nodes, Taints: p.rest, Overwrite: p.overwrite}
		if op.Taint = tainting; word == "untaint" {
			op.Taint, op.Untaint = nil, tainting
		}
		if len(p.rest) == 0 {
			return nil, usagef("%s: no taint is named: write %s node/NAME key=value:NoExecute", word, word)
		}
		if _, err := rules.ParseTaintChange(p.rest); err != nil && word == "taint" {
			return nil, usagef("%w", err)
		}
	case "pressure":
		if op.Pressure = p.makePressure(); p.memory == "" && p.disk == "" {
			return nil, usagef("pressure: say how much is left: write pressure node/NAME --memory 200Mi")
		}
	case "cordon":
		op.Cordon = &p.nodes
	case "uncordon":
		op.Uncordon = &p.nodes
	case "remove-node":
		op.RemoveNode = &p.nodes
	case "drain":
		op.Drain = &p.drain
	}
	return &whatif.Step{Operation: op}, nil
}

func (p *parts) makePressure() *simulate.Pressure {
	c := p.eviction
	return &simulate.Pressure{
		Nodes: p.nodes, Memory: p.memory, EphemeralStorage: p.disk,
		EvictionHard: c.Hard, EvictionSoft: c.Soft, EvictionSoftGracePeriod: c.SoftGrace, EvictionMinimumReclaim: c.MinimumReclaim,
		EvictionPressureTransitionPeriod: &metav1.Duration{Duration: c.Transition}, EvictionMaxPodGracePeriod: &c.MaxPodGrace,
	}
}

// bareNodes takes the names of nodes off the words that a taint is told with, as kubectl takes
// them: they stand before the taints. A key alone is a taint for untaint, so there only the first
// word is a name, and only if no node/NAME is there.
func (p *parts) bareNodes(word string) {
	named := len(p.nodes.Nodes) > 0
	for len(p.rest) > 1 && !strings.ContainsAny(p.rest[0], "=:") && !strings.HasSuffix(p.rest[0], "-") {
		if word == "untaint" && (named || len(p.nodes.Nodes) > 0) {
			return
		}
		p.nodes.Nodes, p.rest = append(p.nodes.Nodes, p.rest[0]), p.rest[1:]
	}
}

// joinReference joins TYPE NAME, which kubectl takes as well as TYPE/NAME.
func (p *parts) joinReference() {
	if len(p.rest) == 2 && !strings.Contains(p.rest[0], "/") {
		p.rest = []string{p.rest[0] + "/" + p.rest[1]}
	}
}

// setNamespace says where what is named without a namespace is.
func setNamespace(step *whatif.Step, namespace string) {
	if step.Operation == nil {
		return
	}
	switch {
	case step.AddPods != nil:
		step.AddPods.Namespace = namespace
	case step.Scale != nil:
		step.Scale.Namespace = namespace
	case step.Rebalance != nil:
		step.Rebalance.Namespace = namespace
	case step.Evict != nil:
		step.Evict.Namespace = namespace
	case step.Use != nil:
		step.Use.Namespace = namespace
	case step.Delete != nil:
		step.Delete.Namespace = namespace
	}
}
