// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package clusterfacts

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/inspect/check"
	"github.com/berth-k8s/berth/internal/kube/connect"
)

// pageSize is the number of objects per list request: kubectl's own page size.
const pageSize = 500

// Read reads the facts. It returns an error only if the cluster is unreachable: it records other
// failures in Facts.Unread, and continues.
func Read(ctx context.Context, client kubernetes.Interface) (*check.Facts, error) {
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("ask for the version: %w", connect.WithRemedy(err))
	}

	r := &reader{client: client, facts: &check.Facts{
		AsOf: time.Now(), Version: version.GitVersion, Pods: map[string]check.Count{}, Leases: map[string]string{},
		Denied: map[deploy.Part][]string{}, WebhookEndpoints: -1,
	}}

	// A broken aggregated API must not prevent judging the rest.
	if groups, err := client.Discovery().ServerGroups(); err != nil {
		r.missed("API groups", err)
	} else {
		r.facts.Groups = answer.Mapped(groups.Groups, func(g metav1.APIGroup) string { return g.Name })
	}

	r.objects(ctx)
	r.requests(ctx)
	r.pods(ctx)
	r.installation(ctx)
	return r.facts, nil
}

// reader reads one cluster into facts.
type reader struct {
	client kubernetes.Interface
	facts  *check.Facts
}

// missed records that something could not be read, and the reason.
func (r *reader) missed(what string, err error) {
	r.facts.Unread = append(r.facts.Unread, fmt.Sprintf("%s: %v", what, err))
}

// each lists a kind in pages, and calls take for each object. If a page fails, the objects taken so
// far stay, and the kind is recorded as unread.
func each[L runtime.Object, T any](ctx context.Context, r *reader, what string,
	list func(context.Context, metav1.ListOptions) (L, error), take func(*T)) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := list(ctx, options)
		if err == nil {
			err = meta.EachListItem(page, func(o runtime.Object) error { take(any(o).(*T)); return nil })
		}

		if err != nil {
			r.missed(what, err)
			return
		}

		// Without a continue token this was the last page.
		about, err := meta.ListAccessor(page)
		if err != nil || about.GetContinue() == "" {
			return
		}
		options.Continue = about.GetContinue()
	}
}

// collect lists a kind into a slice.
func collect[L runtime.Object, T any](ctx context.Context, r *reader, what string,
	list func(context.Context, metav1.ListOptions) (L, error), into *[]T) {
	each(ctx, r, what, list, func(o *T) { *into = append(*into, *o) })
}

// objects reads the individually judged kinds.
func (r *reader) objects(ctx context.Context) {
	collect(ctx, r, "nodes", r.client.CoreV1().Nodes().List, &r.facts.Nodes)
	collect(ctx, r, "priority classes", r.client.SchedulingV1().PriorityClasses().List, &r.facts.PriorityClasses)
	collect(ctx, r, "budgets", r.client.PolicyV1().PodDisruptionBudgets("").List, &r.facts.Budgets)
	collect(ctx, r, "CSI drivers", r.client.StorageV1().CSIDrivers().List, &r.facts.Drivers)
	r.attachments(ctx)
	hooks := r.client.AdmissionregistrationV1()
	collect(ctx, r, "mutating webhooks", hooks.MutatingWebhookConfigurations().List, &r.facts.Mutating)
	collect(ctx, r, "validating webhooks", hooks.ValidatingWebhookConfigurations().List, &r.facts.Validating)
	r.leases(ctx)
}

// leases reads the schedulers' Leases, in system namespaces, and skips the many Leases of nodes.
func (r *reader) leases(ctx context.Context) {
	var all []*coordinationv1.Lease
	namespaces, now := []string{metav1.NamespaceSystem, deploy.Namespace}, time.Now()
	for _, namespace := range namespaces {
		leases, err := r.client.CoordinationV1().Leases(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			r.missed("leases in "+namespace, err)
			continue
		}

		for i := range leases.Items {
			lease := &leases.Items[i]
			all = append(all, lease)
			holder, name := config.HolderOf(lease, now), namespace+"/"+lease.Name
			if holder == "" {
				continue
			}
			r.facts.Leases[name] = holder
			if inUse := config.ReadInUse([]byte(lease.Annotations[config.InUseAnnotation])); inUse != nil && inUse.Holder == holder {
				r.facts.BerthLeads = r.facts.BerthLeads || name == check.UpstreamLease
			}
		}
	}
	r.facts.Stopped = config.StoppedOf(nil, all, namespaces, now)
}

// attachesWithin is the usual maximum duration of attaching a volume. Beyond it, the attachment
// counts as waiting.
const attachesWithin = 2 * time.Minute

// attachments counts volume attachments by driver. If they cannot be read, Facts.Attachments stays
// nil: unlike zero attachments, the number is unknown.
func (r *reader) attachments(ctx context.Context) {
	counts, unread := map[string]check.Count{}, len(r.facts.Unread)
	each(ctx, r, "volume attachments", r.client.StorageV1().VolumeAttachments().List, func(a *storagev1.VolumeAttachment) {
		// Count by driver, because each has a separate attacher.
		count := counts[a.Spec.Attacher]
		count.All++
		// Recent attachments are still in progress.
		if !a.Status.Attached && time.Since(a.CreationTimestamp.Time) > attachesWithin {
			count.Waiting++
		}
		counts[a.Spec.Attacher] = count
	})
	if len(r.facts.Unread) == unread {
		r.facts.Attachments = counts
	}
}

// answeredWithin is the minimum age at which an EvictionRequest not yet observed by a controller
// counts as waiting.
const answeredWithin = time.Minute

// requests counts EvictionRequests, if served.
func (r *reader) requests(ctx context.Context) {
	served, err := r.client.Discovery().ServerResourcesForGroupVersion(lifecyclev1alpha1.SchemeGroupVersion.String())
	switch {
	// The API server lacks the group: before 1.37, or with the feature off.
	case apierrors.IsNotFound(err):
		return
	case err != nil:
		r.missed("whether EvictionRequests are served", err)
		return
	case !slices.ContainsFunc(served.APIResources, func(a metav1.APIResource) bool { return a.Name == "evictionrequests" }):
		return
	}

	r.facts.ServesRequests = true
	list := r.client.LifecycleV1alpha1().EvictionRequests("").List
	each(ctx, r, "eviction requests", list, func(e *lifecyclev1alpha1.EvictionRequest) {
		r.facts.Requests.All++
		// The controller that handles the request sets ObservedGeneration.
		if e.Status.ObservedGeneration == nil && time.Since(e.CreationTimestamp.Time) > answeredWithin {
			r.facts.Requests.Waiting++
		}
	})
}

// programs lists the programs with relevant command lines.
var programs = []string{"kube-scheduler", "kube-controller-manager"}

// pods counts the pods by scheduler, and finds the processes of the control plane among them.
// Because there are many pods, it does not retain them.
func (r *reader) pods(ctx context.Context) {
	each(ctx, r, "pods", r.client.CoreV1().Pods("").List, func(pod *v1.Pod) {
		// Terminated pods do not concern schedulers.
		if pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed {
			count := r.facts.Pods[pod.Spec.SchedulerName]
			count.All++
			if pod.Spec.NodeName == "" {
				count.Waiting++
			}
			r.facts.Pods[pod.Spec.SchedulerName] = count
			if groups.NameOf(pod) != "" {
				r.facts.Grouped++
			}
		}

		r.facts.Failing = append(r.facts.Failing, failingIn(pod)...)
		for _, container := range pod.Spec.Containers {
			if p, ok := processOf(pod, container); ok {
				r.facts.Processes = append(r.facts.Processes, p)
			}
		}
	})
}

// failingIn returns the containers of a pod of Berth that wait for anything but their creation.
func failingIn(pod *v1.Pod) (list []check.Failing) {
	if pod.Labels["app.kubernetes.io/part-of"] != "berth" {
		return nil
	}
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		if w := s.State.Waiting; w != nil && !slices.Contains([]string{"", "ContainerCreating", "PodInitializing"}, w.Reason) {
			list = append(list, check.Failing{
				Part: deploy.Part(pod.Labels["app.kubernetes.io/component"]), Where: pod.Namespace + "/" + pod.Name, Image: s.Image, Reason: w.Reason,
			})
		}
	}
	return list
}

// processOf returns the process of a container that runs one of the programs: by its command or,
// without one, by the name of its image. Berth's controller is identified by its subcommand.
func processOf(pod *v1.Pod, container v1.Container) (check.Process, bool) {
	line := slices.Concat(container.Command, container.Args)
	image, _, _ := strings.Cut(path.Base(container.Image), ":")
	name := image
	// The image's entrypoint is unknown; by convention its name is the image's.
	if len(container.Command) > 0 {
		name, line = path.Base(line[0]), line[1:]
	}
	// All components of Berth are one program.
	if name == "berth" && len(line) > 0 && line[0] == string(deploy.Controller) {
		name, line = check.Controller, line[1:]
	}
	if name != check.Controller && !slices.Contains(programs, name) {
		return check.Process{}, false
	}
	return check.Process{Name: name, Where: pod.Namespace + "/" + pod.Name, Image: container.Image, Args: line}, true
}

// installation determines the installed components of Berth and their permissions. A component
// counts as installed if its ServiceAccount exists.
func (r *reader) installation(ctx context.Context) {
	for _, part := range []deploy.Part{deploy.Scheduler, deploy.Controller, deploy.Webhook} {
		_, err := r.client.CoreV1().ServiceAccounts(deploy.Namespace).Get(ctx, "berth-"+string(part), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			r.missed("service accounts", err)
			return
		}
		r.facts.Installed = append(r.facts.Installed, part)
	}

	// Read the configuration before the permissions, because it determines the scheduler's Lease.
	r.configuration(ctx)
	for _, part := range r.facts.Installed {
		// Check the permissions of the ServiceAccount, not of the caller.
		account := AccessOf(r.client, "system:serviceaccount:"+deploy.Namespace+":berth-"+string(part))
		denied, err := Denied(ctx, account, part, r.facts.Version, r.facts.SchedulerLease)
		if err == nil && part == deploy.Controller && r.facts.AnswersRequests() {
			// Only a controller configured to respond to EvictionRequests needs this permission; by
			// default it does not respond.
			var more []string
			more, err = deniedToAnswer(ctx, account)
			denied = append(denied, more...)
		}
		if err == nil {
			r.facts.Denied[part] = denied
		}
	}

	slices, err := r.client.DiscoveryV1().EndpointSlices(deploy.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=berth-webhook"})
	if err != nil {
		r.missed("endpoint slices", err)
		return
	}

	for _, slice := range slices.Items {
		r.facts.WebhookEndpoints = max(r.facts.WebhookEndpoints, 0)
		// Only ready replicas get requests. As in the API, an endpoint is ready if the condition is
		// nil.
		for _, endpoint := range slice.Endpoints {
			if ready := endpoint.Conditions.Ready; ready == nil || *ready {
				r.facts.WebhookEndpoints++
			}
		}
	}
}

// configuration reads the schedulerNames served by the installed scheduler, and the name of its
// Lease.
func (r *reader) configuration(ctx context.Context) {
	// Without a scheduler there is no configuration to read.
	if !slices.Contains(r.facts.Installed, deploy.Scheduler) {
		return
	}
	found, err := r.client.CoreV1().ConfigMaps(deploy.Namespace).Get(ctx, "berth-scheduler", metav1.GetOptions{})
	if err != nil {
		r.missed("configuration of Berth's scheduler", err)
		return
	}

	var file struct {
		LeaderElection struct{ ResourceNamespace, ResourceName string }
		Profiles       []struct{ SchedulerName string }
	}
	if err := yaml.Unmarshal([]byte(found.Data["scheduler.yaml"]), &file); err != nil {
		r.missed("configuration of Berth's scheduler", err)
		return
	}

	r.facts.SchedulerLease = file.LeaderElection.ResourceNamespace + "/" + file.LeaderElection.ResourceName
	r.facts.SchedulerNames = answer.Mapped(file.Profiles, func(p struct{ SchedulerName string }) string { return p.SchedulerName })
}
