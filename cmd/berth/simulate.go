package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/record"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/scheduler/options"
)

// simulation is what the flags of berth simulate say.
type simulation struct {
	files     []string
	recursive bool
	strict    bool
	config    string
	seed      uint64
	explain   bool
	gates     map[string]bool
	gentle    options.Gentle
	time      time.Duration
	scenario  string
	grace     time.Duration
	output    string
}

func newSimulateCommand() *cobra.Command {
	var s simulation
	cmd := &cobra.Command{
		Use:     "simulate -f FILE|DIR|-",
		GroupID: groupAsk,
		Short:   "Where pods would go, offline, from manifests",
		Long: `Schedule the pods in manifests without a cluster: where each pod would go, which
pods would be preempted for it, which pods would be evicted and when, and why a
pod fits nowhere. The manifests are the cluster.

Reads any number of files, folders and, as -, standard input, as "kubectl get -o
yaml" prints them or as people write them: nodes, pods, and what pods and nodes
refer to; -k DIR reads the output of a kustomization. Workloads (Deployment,
ReplicaSet, StatefulSet, DaemonSet, Job) are expanded into the pods that their
controllers would make.

A pod group (PodGroup, scheduling.k8s.io/v1beta1) is placed as a whole or not at
all. With --feature-gates=WorkloadWithJob=true Jobs that ask for it become gangs,
as the Job controller makes them.

Pending pods go through admission, as in the API server, and are then scheduled by
priority and age, each once. Evictions are listed with the time at which they are
due. With --for, time passes: evictions happen when they are due, controllers
replace the pods, pending pods are retried, and nodes that are silent or not ready
are tainted. With --scenario, things happen meanwhile: zones fail and recover,
nodes are drained, manifests are deployed. The answer is then a timeline, with
-o svg a picture of it.

The same manifests and seed give the same output, byte for byte.`,
		Example: `  berth simulate -f nodes.yaml -f app.yaml
  kubectl get nodes,pods -A -o yaml | berth simulate -f - -f new.yaml
  berth simulate -f nodes.yaml -k overlays/production
  berth simulate -f cluster/ --explain -o json
  berth simulate -f cluster/ --for 10m
  berth simulate -f cluster/ --scenario outage.yaml -o svg > outage.svg`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.runSimulation(cmd) },
	}
	flags := cmd.Flags()
	addFiles(flags, &s.files, "a file or folder of manifests, or - for standard input (repeatable)",
		"a folder with a kustomization, of which its manifests are made (repeatable)")
	addFetch(flags)
	flags.BoolVarP(&s.recursive, "recursive", "R", false, "read subfolders, too")
	flags.BoolVar(&s.strict, "strict", false, "refuse pods that are bound to a node that the manifests do not have")
	flags.StringVar(&s.config, "config", "", "the scheduler's configuration file, as for kube-scheduler")
	flags.Uint64Var(&s.seed, "seed", 1, "breaks ties between nodes that are equally good")
	addGates(flags, &s.gates)
	s.gentle.AddFlags(flags)
	flags.BoolVar(&s.explain, "explain", false, "add the verdict of every plugin on every node")
	flags.DurationVar(&s.time, "for", 0, "how much time passes after scheduling, as 10m")
	flags.StringVar(&s.scenario, "scenario", "", "a file with operations and the times at which they happen")
	flags.DurationVar(&s.grace, "node-monitor-grace-period", nodehealth.Defaults().MonitorGracePeriod,
		"how long a node may be silent before it is unreachable")
	flags.StringVarP(&s.output, "output", "o", "", formatsUsage(drawnFormats)+". svg needs --scenario")
	return cmd
}

// drawnFormats are those of berth simulate, which draws what happens over time.
var drawnFormats = append(slices.Clone(formats), "svg")

func (s *simulation) runSimulation(cmd *cobra.Command) error {
	switch {
	case len(s.files) == 0:
		return usagef("no manifests given: use -f FILE, -f DIR, -f - or -k DIR")
	case s.output == "svg" && s.scenario == "":
		return usagef("--output svg: draws what happens in a --scenario")
	case s.grace < 20*time.Second:
		return usagef("--node-monitor-grace-period %s: must be 20s or more, for nodes renew their leases every 10s", s.grace)
	case s.time < 0:
		return usagef("--for %s: must not be negative", s.time)
	}

	if err := s.gentle.Validate(); err != nil {
		return usagef("%w", err)
	}
	if err := checkFormat(s.output, drawnFormats); err != nil {
		return err
	}
	if err := checkGates(s.gates); err != nil {
		return err
	}

	q := question{config: s.config, files: s.files, output: s.output}
	if err := q.readConfig(cmd); err != nil {
		return err
	}

	health := nodehealth.Defaults()
	health.MonitorGracePeriod = s.grace
	scenario, err := s.readScenario()
	if err != nil {
		return err
	}

	meter := startMeter(cmd.ErrOrStderr())
	defer meter.stop()
	set, err := readManifests(s.files, s.readOptions(), cmd)
	if err != nil {
		return err
	}

	end, err := endOf(s.files)
	if err != nil {
		return err
	}

	source := simulate.Source{AsOf: end}
	running, err := q.configFor(cmd, set, &source)
	if err != nil {
		return err
	}
	if err := s.gentle.Apply(running.Profiles); err != nil {
		return usagef("%w", err)
	}

	if len(s.gates) == 0 && running.Groups != nil {
		s.gates = running.Groups.Named()
	}
	meter.beginStep("simulating")
	answer, err := simulate.Run(set, simulate.Options{
		Profiles: running.Profiles, Seed: s.seed, Gates: s.gates, Explain: s.explain, For: s.time, Discard: scenario == nil,
		Scenario: scenario, Health: health, Read: fileReader(cmd), Progress: meter.showProgress, Now: end.Time,
	})

	if err != nil {
		return err
	}
	meter.stop()
	tellIgnored(cmd.ErrOrStderr(), set)
	answer.Assumed = source.Assumed
	if err := q.writeOpening(cmd.OutOrStdout()); err != nil {
		return err
	}
	return answer.Write(cmd.OutOrStdout(), s.output)
}

// readScenario reads what is to happen, and how long time is to pass for it if no flag says.
func (s *simulation) readScenario() (*simulate.Scenario, error) {
	if s.scenario == "" {
		return nil, nil
	}
	scenario, err := simulate.ReadScenario(s.scenario)
	if err != nil {
		return nil, err
	}
	switch {
	case s.time > 0:
	case scenario.For != nil && scenario.For.Duration > 0:
		s.time = scenario.For.Duration
	default:
		s.time = scenario.Ends() + afterTheLast
	}
	return scenario, nil
}

// afterTheLast is how long time passes after the last step, if nothing else is said: evictions come
// 300 s after a node is lost.
const afterTheLast = 10 * time.Minute

func (s *simulation) readOptions() manifest.Options {
	return manifest.Options{Recursive: s.recursive, Lenient: hasRecording(s.files), Strict: s.strict}
}

// readManifests prints all errors but the last, which it returns: each is a line.
func readManifests(files []string, options manifest.Options, cmd *cobra.Command) (*manifest.Set, error) {
	if i := slices.IndexFunc(files, isRecording); i >= 0 && options.Recursive {
		return nil, usagef("--recursive: the folders in the recording %s are its past; leave it out", files[i])
	}
	fetch, _ := cmd.Flags().GetBool(fetchFlag) // without the flag it is false
	options.Kustomize = newKustomizer(fetch)
	set, err := manifest.Read(files, cmd.InOrStdin(), options)
	var list manifest.Errors
	if !errors.As(err, &list) || len(list) == 0 {
		if err == nil {
			tellClocks(cmd.ErrOrStderr(), set)
			err = limitToRecorded(cmd.ErrOrStderr(), files, set)
		}
		return set, err
	}
	for _, e := range list[:len(list)-1] {
		printVisible(cmd.ErrOrStderr(), "%s: %s", cmd.Root().DisplayName(), oneLine(e))
	}
	return nil, list[len(list)-1]
}

// limitToRecorded names the kinds that the recordings among the files lack. A set without them is
// no whole cluster.
func limitToRecorded(stderr io.Writer, files []string, set *manifest.Set) error {
	for _, path := range files {
		if !isRecording(path) {
			continue
		}
		index, err := record.ReadIndex(path)
		if err != nil {
			return err
		}
		missing := index.MissingAt(index.Source.AsOf.Add(time.Second)) // AsOf has no fractions
		tellMissing(stderr, missing)
		set.Whole = set.Whole && len(missing) == 0
	}
	return nil
}

// tellClocks names the nodes whose times are not believed. It is to be asked before the set is used
// up.
func tellClocks(stderr io.Writer, set *manifest.Set) {
	if ahead := simulate.ClocksAhead(set); len(ahead) > 0 {
		printVisible(stderr, "times beyond the other nodes' clocks, not believed: those of %s",
			answer.List(len(ahead), func(i int) string { return ahead[i] }))
	}
}

// tellElsewhere says in one line that pods are bound to nodes that the input does not have.
func tellElsewhere(stderr io.Writer, set *manifest.Set) {
	if len(set.Elsewhere) == 0 {
		return
	}
	nodes, pods := slices.Sorted(maps.Keys(set.Elsewhere)), 0
	for _, n := range set.Elsewhere {
		pods += n
	}
	printVisible(stderr, "bound to nodes that the input does not have, kept as bound elsewhere (--strict refuses): %s on %s",
		answer.Count(pods, "pod"), answer.List(len(nodes), func(i int) string { return nodes[i] }))
}

// tellIgnored names what was read and not used, or not as it stands.
func tellIgnored(stderr io.Writer, set *manifest.Set) {
	tellElsewhere(stderr, set)
	for _, warning := range set.Warnings {
		printVisible(stderr, "%s", warning)
	}
	if len(set.Ignored) == 0 {
		return
	}
	var list []string
	for _, kind := range slices.Sorted(maps.Keys(set.Ignored)) {
		list = append(list, fmt.Sprintf("%d %s", set.Ignored[kind], kind))
	}
	printVisible(stderr, "not used: %s", strings.Join(list, ", "))
}
