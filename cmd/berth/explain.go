package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/inspect/explain"
)

// explanation is what the flags of berth explain say.
type explanation struct {
	question
	namespace     string
	allNamespaces bool
	selector      string
	node          string

	schedulerURL string
}

func newExplainCommand() *cobra.Command {
	e := explanation{question: question{userAgent: "berth-explain"}}
	cmd := &cobra.Command{
		Use:     "explain pod/NAME | TYPE/NAME | -l SELECTOR",
		GroupID: groupAsk,
		Short:   "Why a pod is where it is, or why it waits, and what would help",
		Long: `Say why a pod is where it is: the scores of its node and of the next best ones.
Or why it waits: the nodes by reason, whether preemption helps, its place in the
queue and what will wake it, and the smallest changes that would let it run, each
tried with the engine before it is printed. Or why it has to leave its node, when
exactly, and what would let it stay.

Of a workload (deployment/web, statefulset/db, ...), or of the pods with some
labels, one pod is explained for all that are in the same state for the same
reason, those without a node first.

Asks the cluster of the kubeconfig, which is only read (get and list, never
secrets), or with -f the one in manifests or in a recording. A live scheduler of
Berth is asked, too, what it decided last, and whether that still holds is said:
that of berth up, or the one of --scheduler-url.`,
		Example: `  berth explain pod/web-1
  berth explain pod/web-1 -n shop -o json
  berth explain pod/web-1 --node node-3
  berth explain deployment/web
  berth explain -l app=web -A
  berth explain pod/web-1 -f cluster/`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && e.selector == "" {
				return cobra.ExactArgs(1)(cmd, args)
			}
			return cobra.MaximumNArgs(2)(cmd, args)
		},
		ValidArgsFunction: completePods(&e.question, &e.namespace),
		RunE:              func(cmd *cobra.Command, args []string) error { return e.run(cmd, strings.Join(args, "/")) },
	}
	flags := cmd.Flags()
	e.addFlags(flags, "json, yaml or wide")
	flags.StringVarP(&e.namespace, "namespace", "n", "", "the pod's namespace (default: the context's, or default)")
	flags.StringVarP(&e.selector, "selector", "l", "", "explain the pods with these labels")
	flags.BoolVarP(&e.allNamespaces, "all-namespaces", "A", false, "with --selector, in all namespaces")
	flags.StringVar(&e.schedulerURL, "scheduler-url", "", "the scheduler's endpoints, as http://127.0.0.1:10251, to ask what it decided (default: those of berth up)")
	flags.StringVar(&e.node, "node", "", "add every plugin's word on this node")
	return cmd
}

func (e *explanation) run(cmd *cobra.Command, arg string) error {
	if err := oneOf(e.output, append(answer.Formats, "wide")...); err != nil {
		return err
	}
	switch {
	case e.allNamespaces && e.selector == "":
		return usagef("--all-namespaces: goes with --selector")
	case e.selector != "" && arg != "":
		return usagef("%s: name pods, or give --selector", arg)
	case (e.selector != "" || ofWorkload(arg)) && e.node != "":
		return usagef("--node: goes with one pod")
	case e.selector != "":
		return e.ofSeveral(cmd, "pods with "+e.selector)
	case ofWorkload(arg):
		return e.ofSeveral(cmd, arg)
	}
	name, err := named(arg, podWords...)
	if err != nil {
		return err
	}
	node := e.node
	if node != "" {
		if node, err = named(node, nodeWords...); err != nil {
			return err
		}
	}
	w, source, err := e.world(cmd)
	if err != nil {
		return err
	}
	namespace := e.space(e.namespace)
	answer, err := explain.Of(w, explain.Options{
		Namespace: namespace, Name: name, Node: node, Source: source, Decided: e.decided(cmd, namespace, name),
	})
	if err != nil {
		return err
	}
	return answer.Write(cmd.OutOrStdout(), e.output, e.output == "wide")
}
