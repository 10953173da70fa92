package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/inspect/explain"
)

// explanation is what the flags of berth explain say.
type explanation struct {
	question
	namespace     string
	allNamespaces bool
	selector      string
	node          string
	watching
}

func newExplainCommand() *cobra.Command {
	e := explanation{question: question{userAgent: "berth-explain"}}
	cmd := &cobra.Command{
		Use:     "explain pod/NAME | TYPE/NAME | -l SELECTOR",
		GroupID: groupAsk,
		Short:   "Why a pod is where it is, or why it is pending, and what would help",
		Long: `Explain why a pod is where it is: the scores of its node and of the next best
ones. Or why it is pending: the nodes by reason, whether preemption helps, its
place in the queue and which events will wake it, and the smallest changes that
would let it run, each tried with the engine before it is printed. Or why it has
to leave its node, when exactly, and what would let it stay.

Of a pod group (podgroup/train) it says how many pods of how many would be placed
now, what stops the next one, and where each would go.

For a workload (deployment/web, statefulset/db, ...) or a selector, one pod is
explained for all that are in the same state for the same reason, pending pods
first.

The cluster of the kubeconfig is only read (get and list, never secrets); with -f
the cluster is the one in manifests or in a recording. If Berth schedules the
cluster, its last decision about the pod is shown as well, and whether it still
holds: from the scheduler of berth up, or that of --scheduler-url. The answer is by
the configuration that the scheduler runs with; where no scheduler could be asked,
its first line says what was assumed.`,
		Example: `  berth explain pod/web-1
  berth explain pod/web-1 -n shop -o json
  berth explain pod/web-1 --node node-3
  berth explain deployment/web
  berth explain podgroup/train
  berth explain -l app=web -A
  berth explain pod/web-1 --watch
  berth explain pod/web-1 -f cluster/`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && e.selector == "" {
				return errors.New("name what to explain, such as pod/NAME or deployment/NAME, or select pods with -l")
			}
			if len(args) > 2 || len(args) == 2 && strings.Contains(args[0], "/") {
				return fmt.Errorf("%q: one pod, workload or pod group at a time; -l selects several pods", args[1])
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			return e.completeRef(cmd, append(slices.Clone(podsAndWorkloads), groupSubject), lastArg(args), toComplete,
				e.namespaceOr(e.namespace))
		},
		RunE: func(cmd *cobra.Command, args []string) error { return e.runExplain(cmd, strings.Join(args, "/")) },
	}
	flags := cmd.Flags()
	e.question.addFlags(flags)
	e.watching.addFlags(flags)
	flags.StringVarP(&e.namespace, "namespace", "n", "", "the pod's namespace (default: the context's, or default)")
	flags.StringVarP(&e.selector, "selector", "l", "", "explain the pods with these labels")
	flags.BoolVarP(&e.allNamespaces, "all-namespaces", "A", false, "with --selector, in all namespaces")
	flags.StringVar(&e.node, "node", "", "add the verdict of every plugin on this node")
	e.completeFlags(cmd, &e.namespace)
	return cmd
}

// lastArg is the word before the one that is completed.
func lastArg(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[len(args)-1]
}

func (e *explanation) runExplain(cmd *cobra.Command, arg string) error {
	if err := checkFormat(e.output, formats); err != nil {
		return err
	}
	if err := e.checkFlags(e.files); err != nil {
		return err
	}
	if e.selector != "" && slices.Contains(podWords, arg) {
		arg = "" // kubectl's own way: pods -l app=web
	}
	switch {
	case e.allNamespaces && e.selector == "":
		return usagef("--all-namespaces: goes with --selector")
	case e.selector != "" && arg != "":
		return usagef("%s: name pods, or give --selector", arg)
	case (e.selector != "" || ofWorkload(arg)) && e.node != "":
		return usagef("--node: goes with one pod")
	case !isExplainable(arg):
		return usagef("%q: the type must be pod, podgroup, deployment, replicaset, replicationcontroller, "+
			"statefulset, daemonset or job", arg)
	case ofGroup(arg):
		_, name, _ := strings.Cut(arg, "/")
		return e.askRepeatedly(cmd, func() (*spoken, error) { return e.ofGroup(cmd, name) })
	case e.selector != "":
		return e.askRepeatedly(cmd, func() (*spoken, error) { return e.ofSeveral(cmd, "pods with "+e.selector) })
	case ofWorkload(arg):
		return e.askRepeatedly(cmd, func() (*spoken, error) { return e.ofSeveral(cmd, arg) })
	}
	name, err := splitName(arg, podWords...)
	if err != nil {
		return err
	}
	node := e.node
	if node != "" {
		if node, err = splitName(node, nodeWords...); err != nil {
			return err
		}
	}
	return e.askRepeatedly(cmd, func() (*spoken, error) { return e.ofOne(cmd, name, node) })
}

// ofOne explains a pod, and what every plugin says of a node if one is named.
func (e *explanation) ofOne(cmd *cobra.Command, name, node string) (*spoken, error) {
	w, source, err := e.readWorld(cmd)
	if err != nil {
		return nil, err
	}
	namespace := e.namespaceOr(e.namespace)
	decided := e.lastDecision(cmd, namespace, name)
	e.work.beginStep(cmd.ErrOrStderr(), "explaining "+name)
	said, err := explain.Of(w, explain.Options{Namespace: namespace, Name: name, Node: node, Source: source, Decided: decided})
	e.work.endWork()
	if err != nil {
		return nil, err
	}
	return &spoken{explanationGist(said), func() error {
		return errors.Join(e.writeOpening(cmd.OutOrStdout()), said.Write(cmd.OutOrStdout(), e.output, e.output == "wide"))
	}}, nil
}

// isExplainable tells whether TYPE/NAME is of a type that can be explained; a name alone is a
// pod's.
func isExplainable(arg string) bool {
	kind, _, typed := strings.Cut(arg, "/")
	return !typed || slices.ContainsFunc(append(slices.Clone(podsAndWorkloads), groupSubject),
		func(s subject) bool { return slices.Contains(s.words, strings.ToLower(kind)) })
}

// groupWords name pod groups.
var groupWords = []string{"podgroup", "podgroups"}

func ofGroup(arg string) bool {
	kind, name, ok := strings.Cut(arg, "/")
	return ok && name != "" && slices.Contains(groupWords, strings.ToLower(kind))
}

// lastDecision asks the live scheduler for its last decision about the pod. It returns nil if there
// is no scheduler to ask, or it does not know the pod.
func (e *explanation) lastDecision(cmd *cobra.Command, namespace, name string) *decision.Decision {
	s := e.schedulerToAsk()
	if s == nil {
		return nil
	}
	d, err := s.getDecision(cmd.Context(), namespace, name)
	if err != nil {
		e.noteSilent(cmd, err)
	}
	return d
}

// ofGroup explains a pod group.
func (e *explanation) ofGroup(cmd *cobra.Command, name string) (*spoken, error) {
	w, source, err := e.readWorld(cmd)
	if err != nil {
		return nil, err
	}
	e.work.beginStep(cmd.ErrOrStderr(), "explaining podgroup "+name)
	said, err := explain.OfGroup(w, explain.Options{Namespace: e.namespaceOr(e.namespace), Name: name, Source: source})
	e.work.endWork()
	if err != nil {
		return nil, err
	}
	gist := strings.Join([]string{string(said.State), said.Summary}, "\n")
	return &spoken{gist, func() error {
		return errors.Join(e.writeOpening(cmd.OutOrStdout()), said.Write(cmd.OutOrStdout(), e.output))
	}}, nil
}

// explanationGist is what an explanation says but for the time and what the clock alone changes.
func explanationGist(e *explain.Explanation) string {
	words := []string{string(e.State), e.Pod.Node, e.Pod.NominatedNode, e.Message}
	if e.Eviction != nil {
		words = append(words, e.Eviction.Taint, e.Eviction.Due.String())
	}
	for i := range e.Suggestions {
		words = append(words, e.Suggestions[i].Text)
	}
	return strings.Join(words, "\n")
}
