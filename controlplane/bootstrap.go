// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/klog/v2"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/berth-k8s/berth/internal/pacing"
)

// bootstrapHook replaces two upstream hooks that create the default roles and the system priority
// classes. The upstream hooks sleep for a second and then create the objects sequentially, which
// would dominate Berth's startup; this hook creates the same objects immediately and concurrently.
// (Upstream's hook also migrates roles of clusters that predate Berth, which cannot exist here.)
// /readyz shows the hook's name until the hook is done.
const bootstrapHook = "berth/bootstrap-policy"

const (
	bootstrapRetry     = 50 * time.Millisecond // initial delay, doubled after each try
	bootstrapRetryMost = 5 * time.Second
	bootstrapWorkers   = 8
)

// replaceBootstrapHooks substitutes Berth's hook for upstream's hooks. As with those, the server
// becomes ready only after the hook is done.
func replaceBootstrapHooks(config *genericapiserver.Config, guard bool) error {
	config.DisabledPostStartHooks.Insert(rbacrest.PostStartHookName, schedulingrest.PostStartHookName)
	return config.AddPostStartHook(bootstrapHook, func(hook genericapiserver.PostStartHookContext) error {
		client, err := kubernetes.NewForConfig(hook.LoopbackClientConfig)
		if err != nil {
			return err
		}
		retryUntilDone(hook, func(ctx context.Context) error { return bootstrapCluster(ctx, client, guard) })
		return nil
	})
}

// retryUntilDone retries until try succeeds or the server ends. Upstream gives up after 30 s, and a
// failing hook ends the process, dumping the stacks of all goroutines. With etcd and the
// controllers in the same process on a busy machine, bootstrapping may take longer. Until
// bootstrapping is done, the server is not ready, and the caller that started the server decides
// how long to wait. try receives the hook's context and must return when it ends.
func retryUntilDone(ctx context.Context, try func(context.Context) error) {
	for pause := bootstrapRetry; ; pause = min(2*pause, bootstrapRetryMost) {
		err := try(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).Info("Default roles and priority classes not complete yet", "err", err)
		if !pacing.Sleep(ctx, pause) {
			return
		}
	}
}

// bootstrapCluster creates missing objects and adds missing permissions. It keeps an
// administrator's additions, except in the roles of Berth's components. It is idempotent and does
// not rewrite objects that are already correct.
func bootstrapCluster(ctx context.Context, client kubernetes.Interface, guard bool) error {
	// The first error cancels the rest; the next try fills the gaps.
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(bootstrapWorkers)
	own, err := componentRoles(guard)
	if err != nil {
		return err
	}

	if !guard {
		group.Go(func() error { return removeGuard(ctx, client) })
	}
	bootstrapClusterRoles(group, client, own)
	bootstrapNamespacedRoles(group, client, own)
	// These are system-node-critical and system-cluster-critical: admission rejects other classes
	// in their range.
	for _, class := range schedulingv1.SystemPriorityClasses() {
		group.Go(func() error {
			classes := client.SchedulingV1().PriorityClasses()
			// Keep a class modified by an administrator.
			_, err := classes.Get(ctx, class.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				_, err = classes.Create(ctx, class, metav1.CreateOptions{})
			}
			return err
		})
	}

	return group.Wait()
}

// removeGuard deletes the webhook configuration of an earlier run with guarded evictions, whose
// webhook no longer answers. The configuration of a webhook in the cluster calls a Service, and is
// kept.
func removeGuard(ctx context.Context, client kubernetes.Interface) error {
	configurations := client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	c, err := configurations.Get(ctx, "berth-webhook", metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case len(c.Webhooks) != 1 || c.Webhooks[0].Name != "evictions.admission.berth.dev" || c.Webhooks[0].ClientConfig.URL == nil:
		return nil
	}
	err = configurations.Delete(ctx, c.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(c.UID))})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// bootstrapClusterRoles creates the cluster roles and their bindings. The components' own roles
// grant exactly the listed permissions, regardless of earlier versions' grants.
func bootstrapClusterRoles(group *errgroup.Group, client kubernetes.Interface, own roles) {
	// If exactly is set, permissions beyond the list are also removed from the role.
	add := func(all []rbacv1.ClusterRole, exactly bool) {
		for _, role := range all {
			goReconcile(group, &reconciliation.ReconcileRoleOptions{
				Role:                   reconciliation.ClusterRoleRuleOwner{ClusterRole: &role},
				Client:                 reconciliation.ClusterRoleModifier{Client: client.RbacV1().ClusterRoles()},
				Confirm:                true,
				RemoveExtraPermissions: exactly,
			})
		}
	}

	add(slices.Concat(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()), false)
	add(own.cluster, true)
	for _, binding := range slices.Concat(bootstrappolicy.ClusterRoleBindings(),
		bootstrappolicy.ControllerRoleBindings(), identityBindings(), own.clusterBindings) {
		goReconcile(group, &reconciliation.ReconcileRoleBindingOptions{
			RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &binding},
			Client:      reconciliation.ClusterRoleBindingClientAdapter{Client: client.RbacV1().ClusterRoleBindings()},
			Confirm:     true,
		})
	}
}

// bootstrapNamespacedRoles is bootstrapClusterRoles for namespaced roles and their bindings.
func bootstrapNamespacedRoles(group *errgroup.Group, client kubernetes.Interface, own roles) {
	add := func(all []rbacv1.Role, exactly bool) {
		for _, role := range all {
			goReconcile(group, &reconciliation.ReconcileRoleOptions{
				Role:                   reconciliation.RoleRuleOwner{Role: &role},
				Client:                 reconciliation.RoleModifier{Client: client.RbacV1(), NamespaceClient: client.CoreV1().Namespaces()},
				Confirm:                true,
				RemoveExtraPermissions: exactly,
			})
		}
	}

	// NamespaceRoles returns roles for kube-system and kube-public.
	for _, roles := range bootstrappolicy.NamespaceRoles() {
		add(roles, false)
	}
	add(own.namespaced, true)
	bindings := own.bindings
	for _, upstream := range bootstrappolicy.NamespaceRoleBindings() {
		bindings = append(bindings, upstream...)
	}

	for _, binding := range bindings {
		goReconcile(group, &reconciliation.ReconcileRoleBindingOptions{
			RoleBinding: reconciliation.RoleBindingAdapter{RoleBinding: &binding},
			Client:      reconciliation.RoleBindingClientAdapter{Client: client.RbacV1(), NamespaceClient: client.CoreV1().Namespaces()},
			Confirm:     true,
		})
	}
}

// goReconcile runs one of the reconciliation package's options. Each costs a read, plus a write if
// something is missing.
func goReconcile[R any](group *errgroup.Group, options interface{ Run() (R, error) }) {
	group.Go(func() error {
		_, err := options.Run()
		return err
	})
}
