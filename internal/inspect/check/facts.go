// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-k8s/berth/deploy"
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
	Part   deploy.Part
	Where  string // namespace/pod
	Image  string
	Reason string
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
		if value, ok := cutPrefixes(arg, "--"+name+"=", "-"+name+"="); ok {
			values = append(values, value)
		} else if arg == "--"+name && i+1 < len(p.Args) {
			values = append(values, p.Args[i+1])
		}
	}
	return values
}
