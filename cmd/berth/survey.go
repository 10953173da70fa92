package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/survey"
)

// inquiry is what berth pending, berth evictions and berth capacity have in common.
type inquiry struct {
	question
	namespace     string
	allNamespaces bool
	selector      string
	failOn        string
	watching
}

// written is an answer and whether the condition of --fail-on came true.
type written struct {
	write func(out io.Writer, format string) error
	held  bool
	// gist is the answer without the time.
	gist string
	// places is set if the answer depends on the scheduler's configuration.
	places bool
}

func (q *inquiry) addFlags(cmd *cobra.Command, condition string) {
	flags := cmd.Flags()
	q.question.addFlags(flags)
	if condition != "" {
		flags.StringVarP(&q.namespace, "namespace", "n", "", "the namespace to ask about (default: the context's, or default)")
		flags.BoolVarP(&q.allNamespaces, "all-namespaces", "A", false, "ask about all namespaces")
		flags.StringVarP(&q.selector, "selector", "l", "", "only pods with these labels")
		flags.StringVar(&q.failOn, "fail-on", "", "exit with code 3 if there is any: "+condition)
		completeChoices(cmd, "fail-on", condition)
		q.completeFlags(cmd, &q.namespace)
	}
	q.watching.addFlags(flags)
}

func (q *inquiry) parseScope() (survey.Scope, error) {
	scope := survey.Scope{}
	if !q.allNamespaces {
		scope.Namespace = q.namespaceOr(q.namespace)
	}
	selector, err := labels.Parse(q.selector)
	if err != nil {
		return scope, usagef("--selector %q: %w", q.selector, err)
	}
	scope.Selector = selector
	return scope, nil
}

// runInquiry reads the cluster and writes the answer; with --watch, repeatedly.
func (q *inquiry) runInquiry(cmd *cobra.Command, condition string,
	answered func(*simulate.World, simulate.Source) (*written, error)) error {
	if q.failOn != "" && q.failOn != condition {
		return usagef("--fail-on %q: must be %s", q.failOn, condition)
	}
	if err := q.checkFlags(q.files); err != nil {
		return err
	}
	if err := checkFormat(q.output, formats); err != nil {
		return err
	}

	return q.askRepeatedly(cmd, func() (*spoken, error) {
		w, source, err := q.readWorld(cmd)
		if err != nil {
			return nil, err
		}
		q.work.beginStep(cmd.ErrOrStderr(), "asking about the cluster")
		said, err := answered(w, source)
		q.work.endWork()
		if err != nil {
			return nil, err
		}
		return &spoken{said.gist, func() error {
			if !said.places {
				q.assumed = ""
			}
			if err := errors.Join(q.writeOpening(cmd.OutOrStdout()), said.write(cmd.OutOrStdout(), q.output)); err != nil {
				return err
			}
			if said.held && q.failOn != "" {
				return heldError{fmt.Errorf("--fail-on %s: condition met", q.failOn)}
			}
			return nil
		}}, nil
	})
}

func newPendingCommand() *cobra.Command {
	q := inquiry{question: question{userAgent: "berth-pending"}}
	cmd := &cobra.Command{
		Use:     "pending",
		GroupID: groupAsk,
		Short:   "Which workloads are pending, since when, why, and what would help",
		Long: `List the pending pods by workload: how many, since when, the decisive reason
(the plugin that rejects the most nodes), and the smallest change that lets one
of them run, tried with the engine. Read-only: get and list, never secrets.`,
		Example: `  berth pending -A
  berth pending -n shop -l app=web -o wide
  berth pending -A --watch
  berth pending -A -f cluster/ --fail-on pending`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			scope, err := q.parseScope()
			if err != nil {
				return err
			}
			return q.runInquiry(cmd, "pending", func(w *simulate.World, source simulate.Source) (*written, error) {
				p, err := survey.PendingOf(w, scope, source)
				if err != nil {
					return nil, err
				}
				return &written{p.Write, p.Pods+p.Missing > 0, p.Gist(), true}, nil
			})
		},
	}

	q.addFlags(cmd, "pending")
	return cmd
}

func newEvictionsCommand() *cobra.Command {
	q := inquiry{question: question{userAgent: "berth-evictions"}}
	cmd := &cobra.Command{
		Use:     "evictions",
		GroupID: groupAsk,
		Short:   "Which pods have to leave their nodes, when, and because of which taint",
		Long: `List the pods that NoExecute taints evict, in the order in which they are due:
tolerationSeconds are counted from when the taint was added. Read-only: get and
list, never secrets.`,
		Example: `  berth evictions -A
  berth evictions -n shop -o json
  berth evictions -A --watch
  berth evictions -A -f cluster/ --fail-on evicted`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			scope, err := q.parseScope()
			if err != nil {
				return err
			}
			return q.runInquiry(cmd, "evicted", func(w *simulate.World, source simulate.Source) (*written, error) {
				source.Assumed = "" // taints alone decide
				e := survey.EvictionsOf(w, scope, source)
				return &written{e.Write, len(e.Evictions) > 0, e.Gist(), false}, nil
			})
		},
	}
	q.addFlags(cmd, "evicted")
	return cmd
}

func newCapacityCommand() *cobra.Command {
	q := inquiry{question: question{userAgent: "berth-capacity"}}
	by, like := "node", ""
	cmd := &cobra.Command{
		Use:     "capacity",
		GroupID: groupAsk,
		Short:   "What still fits where: by node, zone or shape of node",
		Long: `Show requested and allocatable CPU, memory and pods, the largest pod that still
fits, and stranded room: what no pod of median size can use, because the node is
closed, has no pod slots left, or too little of the other resource. With --like, how
many more pods of a kind fit, placed by the engine. Read-only: get and list,
never secrets.`,
		Example: `  berth capacity
  berth capacity --by zone
  berth capacity --by shape --like deployment/web -n shop
  berth capacity -f cluster/ --like pod/web-0`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(survey.Ways, by) {
				return usagef("--by %q: must be one of %s", by, strings.Join(survey.Ways, ", "))
			}
			return q.runInquiry(cmd, "", func(w *simulate.World, source simulate.Source) (*written, error) {
				if like == "" {
					source.Assumed = "" // requests alone decide
				}
				c := survey.CapacityOf(w, by, source)
				if like != "" {
					done, err := w.Do(&simulate.Operation{AddPods: &simulate.AddPods{Max: true, Like: like,
						Namespace: q.namespaceOr(q.namespace)}})
					if err != nil {
						return nil, err
					}
					c.Fill = done.Fill
				}
				return &written{c.Write, false, c.Gist(), like != ""}, nil
			})
		},
	}
	q.addFlags(cmd, "")
	flags := cmd.Flags()
	flags.StringVar(&by, "by", by, strings.Join(survey.Ways, ", ")+": what nodes are grouped by")
	flags.StringVar(&like, "like", "", "also count how many more pods like this one fit: pod/NAME, deployment/NAME, ...")
	flags.StringVarP(&q.namespace, "namespace", "n", "", "of what --like names (default: the context's, or default)")
	q.completeFlags(cmd, &q.namespace)
	completeChoices(cmd, "by", survey.Ways...)
	return cmd
}
