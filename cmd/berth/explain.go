// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// explanation holds the flags of berth explain.
type explanation struct {
	scope
	node string
}

func newExplainCommand() *cobra.Command {
	e := explanation{scope: scope{Question: query.Question{UserAgent: "berth-explain"}}}
	cmd := &cobra.Command{
		Use:     "explain pod/NAME | TYPE/NAME | -l SELECTOR",
		GroupID: groupAsk,
		Short:   "Why a pod is where it is, or why it is pending, and what would help",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 && e.selector == "" {
				return errors.New("specify what to explain, such as pod/NAME or deployment/NAME, or select pods with -l")
			}
			if len(args) > 2 || len(args) == 2 && strings.Contains(args[0], "/") {
				return fmt.Errorf("%q: one pod, workload or pod group at a time; -l selects several pods", args[1])
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			return e.Reference(cmd, parse.Explainable, parse.Last(args), toComplete, e.inNamespace())
		},
		RunE: func(cmd *cobra.Command, args []string) error { return e.runExplain(cmd, strings.Join(args, "/")) },
	}

	flags := cmd.Flags()
	e.AddFlags(flags)
	e.AddWatchFlags(flags)
	flags.StringVarP(&e.namespace, "namespace", "n", "", "the pod's namespace (default: the context's, or default)")
	flags.StringVarP(&e.selector, "selector", "l", "", "explain the pods with these labels")
	flags.BoolVarP(&e.allNamespaces, "all-namespaces", "A", false, "with --selector, in all namespaces")
	flags.StringVar(&e.node, "node", "", "add the verdict of every plugin on this node")
	e.CompleteFlags(cmd, &e.namespace)
	return cmd
}

func (e *explanation) runExplain(cmd *cobra.Command, arg string) (err error) {
	if e.selector != "" && slices.Contains(parse.Pod.Words, arg) {
		arg = "" // kubectl's form: pods -l app=web
	}
	kind, name, typed := strings.Cut(arg, "/")
	ofPod := e.selector == "" && (!typed || parse.Pod.IsWord(kind))
	switch {
	case e.allNamespaces && e.selector == "":
		return usagef("--all-namespaces: requires --selector")
	case e.selector != "" && arg != "":
		return usagef("%s: name pods, or give --selector", arg)
	case !ofPod && e.node != "":
		return usagef("--node: requires a single pod")
	case typed && !slices.ContainsFunc(parse.Explainable, func(k parse.Kind) bool { return k.IsWord(kind) }):
		return usagef("%q: the type must be pod, podgroup, deployment, replicaset, replicationcontroller, "+
			"statefulset, daemonset or job", arg)
	}
	if ofPod {
		if name, err = parse.Pod.NameOf(arg); err != nil {
			return err
		}
	}
	if e.node != "" {
		if e.node, err = parse.Node.NameOf(e.node); err != nil {
			return err
		}
	}

	err = e.Ask(cmd, func(w *simulate.World, source simulate.Source) (*query.Answer, error) {
		options := explain.Options{Namespace: e.inNamespace(), Name: name, Source: source}
		switch {
		case ofPod:
			options.Node = e.node
			said, err := e.explainPod(cmd, w, options, name)
			return &query.Answer{Document: said}, err
		case parse.PodGroup.OfKind(arg):
			e.Meter.Begin(cmd.ErrOrStderr(), "explaining podgroup "+name)
			said, err := explain.OfGroup(w, options)
			return &query.Answer{Document: said}, err
		}
		said, err := e.explainSeveral(cmd, w, options, arg)
		return &query.Answer{Document: said}, err
	})
	// A namespace's admin may read the pod, but not the nodes.
	if ofPod && apierrors.IsForbidden(err) {
		if status := e.StatusOf(cmd.Context(), e.inNamespace(), name); status != "" {
			err = fmt.Errorf("%w. Without them: %s", err, status)
		}
	}
	return err
}

// explainPod explains a pod; called is its name in the progress meter.
func (e *explanation) explainPod(cmd *cobra.Command, w *simulate.World, o explain.Options, called string) (*explain.Explanation, error) {
	o.Decided = e.Decision(cmd, o.Namespace, o.Name)
	e.Meter.Begin(cmd.ErrOrStderr(), "explaining "+called)
	defer e.Meter.Clear()
	return explain.Of(w, o)
}

// explainSeveral explains the pods of a workload, or the pods matching the selector.
func (e *explanation) explainSeveral(cmd *cobra.Command, w *simulate.World, o explain.Options, of string) (*explain.Several, error) {
	found, err := e.findPods(w, of)
	if err != nil {
		return nil, err
	}
	if e.selector != "" {
		of = "pods with " + e.selector
	}
	said, err := explain.OfSeveral(w, of, found, func(turn int, pod simulate.Found) (*explain.Explanation, error) {
		o.Namespace, o.Name = pod.Object.Namespace, pod.Object.Name
		return e.explainPod(cmd, w, o, fmt.Sprintf("%d of %d pods", turn+1, len(found)))
	})
	if err == nil && e.selector == "" {
		err = said.CountMissing(w, e.inNamespace())
	}
	return said, err
}

// findPods returns the pods of the workload, or the pods matching the selector.
func (e *explanation) findPods(w *simulate.World, of string) (found []simulate.Found, err error) {
	if e.selector == "" {
		return w.PodsOf(of, e.inNamespace())
	}
	scope, err := e.parseScope()
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(w.Each(), func(f simulate.Found) bool { return !scope.Covers(f) })
	if len(found) == 0 {
		where := "in any namespace"
		if !e.allNamespaces {
			where = "in namespace " + scope.Namespace
		}
		return nil, fmt.Errorf("no pod %s has the labels %s", where, e.selector)
	}
	return found, nil
}
