// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"io"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/config"
)

// Facts holds the facts about a cluster. Facts that could not be read are empty, and Unread lists
// them.
type Facts struct {
	AsOf    time.Time
	Version string   // version of the API server, such as v1.36.3
	Groups  []string // API groups, such as apps or resource.k8s.io

	Nodes           []v1.Node
	PriorityClasses []schedulingv1.PriorityClass
	Budgets         []policyv1.PodDisruptionBudget
	Mutating        []admissionregistrationv1.MutatingWebhookConfiguration
	Validating      []admissionregistrationv1.ValidatingWebhookConfiguration
	Drivers         []storagev1.CSIDriver
	// Attachments counts the VolumeAttachments by driver; Waiting is the number of attachments that
	// have been pending for long. Attachments is nil if they could not be read.
	Attachments map[string]Count

	// Pods counts the pods by spec.schedulerName; Waiting is the number of pods without a node.
	Pods map[string]Count
	// Grouped is the number of pods that name a pod group.
	Grouped int
	// ServesRequests is set if the API server serves EvictionRequests. Requests counts them;
	// Waiting is the number of requests unobserved for long.
	ServesRequests bool
	Requests       Count
	// Processes lists the processes of the control plane that run as pods.
	Processes []Process
	// Leases maps the Leases held by schedulers, as namespace/name, to their holders. BerthLeads is
	// set if Berth holds UpstreamLease, recognized by the configuration in the Lease's annotation.
	Leases     map[string]string
	BerthLeads bool
	// Stopped lists the schedulers that released their Lease or no longer renew it.
	Stopped []config.Stopped
	// Installed lists the components of Berth with an existing ServiceAccount.
	Installed []deploy.Part
	// Failing lists the containers of Berth's pods that cannot start.
	Failing []Failing
	// SchedulerNames lists the names served by Berth under the installed configuration, and
	// SchedulerLease is the Lease of its leader election, as namespace/name.
	SchedulerNames []string
	SchedulerLease string
	// Denied lists the permissions that a component needs and lacks. A component that could not be
	// checked is absent.
	Denied map[deploy.Part][]string
	// WebhookEndpoints is the number of addresses behind the webhook's Service; negative without a
	// Service.
	WebhookEndpoints int

	Unread []string // unreadable kinds, with the reason
}

// Count counts pods, volumes or requests.
type Count struct{ All, Waiting int }

// Failing is a container of Berth in a waiting state, such as ImagePullBackOff.
type Failing struct {
	Part          deploy.Part
	Where         string // namespace/pod
	Image, Reason string
}

// Controller is the name of Berth's controller as a Process.
const Controller = "berth-controller"

// Process is a visible container of the control plane, for example of a static pod.
type Process struct {
	Name  string // kube-scheduler, kube-controller-manager, or Controller
	Where string // namespace/pod
	Image string
	Args  []string // command line without the program
}

// flagValue returns the value of a command-line flag, or "". The last of several values counts.
func (p *Process) flagValue(name string) string {
	if values := p.flagValues(name); len(values) > 0 {
		return values[len(values)-1]
	}
	return ""
}

// flagList returns the combined lists of a command-line flag given once or more.
func (p *Process) flagList(name string) (all []string) {
	for _, value := range p.flagValues(name) {
		all = append(all, strings.Split(value, ",")...)
	}
	return all
}

// flagValues returns the values of a flag in command-line order: --name=value, -name=value or
// --name value.
func (p *Process) flagValues(name string) (values []string) {
	for i, arg := range p.Args {
		if flag, value, ok := strings.Cut(arg, "="); ok && (flag == "--"+name || flag == "-"+name) {
			values = append(values, value)
		} else if arg == "--"+name && i+1 < len(p.Args) {
			values = append(values, p.Args[i+1])
		}
	}
	return values
}

// Answer is the document that `berth check -o json` prints.
type Answer struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Version    string    `json:"version"` // of the API server
	Findings   []Finding `json:"findings"`
}

// NewAnswer returns the document about a cluster of this version.
func NewAnswer(version string, findings []Finding) *Answer {
	return &Answer{APIVersion: "berth.dev/v1alpha1", Kind: "Check", Version: version, Findings: findings}
}

// Write prints one line per finding, or the document in a format. Findings are in the order of
// Judge.
func (a *Answer) Write(out io.Writer, format string) error {
	return answer.Write(out, format, a, func(people *answer.Page) {
		var rows [][]string
		for _, f := range a.Findings {
			text := f.Message
			// The action follows the finding on the same line.
			if f.Action != "" {
				text += " -> " + f.Action
			}
			rows = append(rows, []string{string(f.Level), f.Topic, text})
		}
		people.Rows("", rows)
	})
}

// Held counts the findings of this level or a more severe one. An unknown level is treated as OK,
// so all findings count.
func (a *Answer) Held(level Level) int {
	return len(slices.DeleteFunc(slices.Clone(a.Findings), func(f Finding) bool { return gravity[f.Level] < gravity[level] }))
}

// gravity orders the levels.
var gravity = map[Level]int{OK: 0, Note: 1, Warning: 2, Problem: 3}

// answering is the name of the controller that responds to EvictionRequests, both in
// kube-controller-manager and in Berth's controller.
const answering = "evictionrequest-controller"

// AnswersRequests reports whether Berth's controller is configured to respond to EvictionRequests.
func (f *Facts) AnswersRequests() bool { return f.answererOf(Controller) != "" }

// answererOf returns the location of a process of the program that is configured to respond to
// EvictionRequests, or "".
func (f *Facts) answererOf(program string) (where string) {
	for i := range f.Processes {
		if p := &f.Processes[i]; p.Name == program && slices.Contains(p.flagList("controllers"), answering) {
			where = p.Where
		}
	}
	return where
}

// checkRequests checks that exactly one process responds to EvictionRequests. The controller runs
// only if --controllers names it. If no process names it and the API server does not serve
// EvictionRequests, nothing is reported.
func (j *judge) checkRequests() {
	// At most one of them should be set.
	ours, theirs := j.answererOf(Controller), j.answererOf("kube-controller-manager")
	switch waiting := j.Requests.Waiting; {
	case ours != "" && theirs != "":
		j.addFinding(Problem, "eviction requests", "remove "+answering+" from --controllers of one of them",
			"%s and %s both answer EvictionRequests", ours, theirs)

	case j.ServesRequests && waiting > 0 && ours+theirs == "":
		j.addFinding(Problem, "eviction requests", "have Berth's controller answer them: --controllers=*,"+answering,
			"no component has processed %d of %s for a minute", waiting, answer.Count(j.Requests.All, "EvictionRequest"))
	case j.ServesRequests && waiting > 0:
		j.addFinding(Problem, "eviction requests", j.orStart(deploy.Controller, "check that it runs and leads, and its log"),
			"%s has not processed %d of %s for a minute", ours+theirs, waiting, answer.Count(j.Requests.All, "EvictionRequest"))

	case j.ServesRequests && ours+theirs == "":
		j.addFinding(Note, "eviction requests", "docs/concepts/eviction-requests.md describes how to answer them",
			"the API server serves EvictionRequests, and no pod that answers them was found")
	case j.ServesRequests:
		j.addFinding(OK, "eviction requests", "", "%s answers them", ours+theirs)

	case ours+theirs != "":
		j.addFinding(Note, "eviction requests", "start the API server with --feature-gates=EvictionRequestAPI=true "+
			"--runtime-config=lifecycle.k8s.io/v1alpha1=true (v1.37), or remove "+answering+" from --controllers",
			"%s waits to answer EvictionRequests, which the API server does not serve", ours+theirs)
	}
}
