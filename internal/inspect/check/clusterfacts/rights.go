// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package clusterfacts

import (
	"context"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"golang.org/x/sync/errgroup"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/inspect/check"
)

// AccessCheck queries the API server for a permission. Each AccessCheck is for one user. It must be
// safe for concurrent use.
type AccessCheck func(context.Context, *authorizationv1.ResourceAttributes) (bool, error)

// AccessOf returns an AccessCheck for another user. Its callers need permission to create
// SubjectAccessReviews. The user is assumed to be a ServiceAccount, with the groups of
// ServiceAccounts.
func AccessOf(client kubernetes.Interface, user string) AccessCheck {
	return func(ctx context.Context, attributes *authorizationv1.ResourceAttributes) (bool, error) {
		review, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user,
				Groups: []string{"system:serviceaccounts", "system:authenticated"}, ResourceAttributes: attributes},
		}, metav1.CreateOptions{})
		return err == nil && review.Status.Allowed, err
	}
}

// OwnAccess returns an AccessCheck for the caller, available to every caller.
func OwnAccess(client kubernetes.Interface) AccessCheck {
	return func(ctx context.Context, attributes *authorizationv1.ResourceAttributes) (bool, error) {
		review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes},
		}, metav1.CreateOptions{})
		return err == nil && review.Status.Allowed, err
	}
}

// atATime bounds the concurrent queries: a component has dozens of permissions.
const atATime = 8

// sinceMinor returns the first minor version of Kubernetes in which the role system:kube-scheduler
// has a permission, or 0 if every version has it. 36 covers the scheduler's claims for extended
// resources, and the subresource for allocations; 37 covers DeviceTaintRules.
func sinceMinor(r deploy.Right) int {
	switch {
	case r.Group != "resource.k8s.io":
	case r.Resource == "devicetaintrules":
		return 37
	case r.Resource == "resourceclaims/binding", r.Resource == "resourceclaims" && (r.Verb == "create" || r.Verb == "delete"):
		return 36
	}
	return 0
}

// Denied lists the permissions that a component needs on an API server of this version, but that
// are denied to the user of the AccessCheck. lease is the scheduler's Lease as namespace/name;
// empty means the one in the manifests.
func Denied(ctx context.Context, ask AccessCheck, part deploy.Part, version, lease string) ([]string, error) {
	rights, err := deploy.RightsOf(part)
	if err != nil {
		return nil, err
	}

	// These matter only with pod groups or gentle preemption. Elsewhere the role
	// system:kube-scheduler also lacks them. Lacking them is not a fault, so do not query them.
	rights = slices.DeleteFunc(rights, func(r deploy.Right) bool { return r.Group == "scheduling.k8s.io" })
	if minor := check.MinorOf(version); minor >= 0 {
		rights = slices.DeleteFunc(rights, func(r deploy.Right) bool { return sinceMinor(r) > minor })
	}

	// The manifests name one Lease; the configuration may name another. The Lease of the rebalance
	// controller, which shows rooms to keep, is separate, and keeps its name.
	for i := range rights {
		if namespace, name, ok := strings.Cut(lease, "/"); ok && part == deploy.Scheduler && rights[i].Resource == "leases" &&
			rights[i].Namespace == deploy.Namespace {
			rights[i].Namespace = namespace
			if rights[i].Name != "" {
				rights[i].Name = name
			}
		}
	}
	return deniedOf(ctx, ask, rights)
}

// deniedToAnswer lists the additional permissions for responding to EvictionRequests, off by
// default, that are denied to the user of the AccessCheck.
func deniedToAnswer(ctx context.Context, ask AccessCheck) ([]string, error) {
	rights, err := deploy.EvictionRequestRights()
	if err != nil {
		return nil, err
	}
	return deniedOf(ctx, ask, rights)
}

// deniedOf queries each permission, and lists the denied ones in the order of rights. Without any,
// the list is empty but not nil.
func deniedOf(ctx context.Context, ask AccessCheck, rights []deploy.Right) ([]string, error) {
	allowed := make([]bool, len(rights))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atATime)
	for i := range rights {
		group.Go(func() (err error) {
			resource, sub, _ := strings.Cut(rights[i].Resource, "/")
			allowed[i], err = ask(ctx, &authorizationv1.ResourceAttributes{
				Namespace: rights[i].Namespace, Verb: rights[i].Verb, Group: rights[i].Group, Resource: resource,
				Subresource: sub, Name: rights[i].Name,
			})
			return err
		})
	}

	if err := group.Wait(); err != nil {
		return nil, err
	}
	denied := []string{}
	for i, right := range rights {
		if !allowed[i] {
			denied = append(denied, right.String())
		}
	}
	return denied, nil
}
