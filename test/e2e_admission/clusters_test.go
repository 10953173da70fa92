// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eadmission

import (
	"context"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/controlplane"
	"github.com/berth-k8s/berth/controlplane/admissionplugin"
	"github.com/berth-k8s/berth/internal/admission/webhook"
)

// replaced lists the upstream plugins that serve the same purposes as Berth's rules.
var replaced = append(admissionplugin.ReplacedByNode(), admissionplugin.ReplacedByPod()...)

// upstreams configures an API server with upstream's default plugins and without Berth's rules.
func upstreams(o *controlplane.Options) { o.UpstreamAdmission = true }

// upstreamsAll enables the replaced plugins, and upstreamsNone disables them. Both exclude Berth's
// rules.
func upstreamsAll(o *controlplane.Options)  { o.UpstreamAdmission, o.EnableAdmission = true, replaced }
func upstreamsNone(o *controlplane.Options) { o.UpstreamAdmission, o.DisableAdmission = true, replaced }

// cluster is a control plane with a client.
type cluster struct {
	*controlplane.Cluster
	api kubernetes.Interface
}

func start(t testing.TB, options ...func(*controlplane.Options)) *cluster {
	t.Helper()
	c := controlplane.Start(t, options...)
	return &cluster{c, kubernetes.NewForConfigOrDie(c.Config)}
}

// system is the namespace of the webhooks.
const system = "berth-system"

// makeNamespace creates a namespace and waits until pods can be created in it.
func (c *cluster) makeNamespace(t testing.TB, namespace *v1.Namespace) {
	t.Helper()
	if _, err := c.api.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		_, err := c.api.CoreV1().ServiceAccounts(namespace.Name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

func webhookOptions() webhook.Options {
	o := webhook.DefaultOptions()
	o.Address, o.Health, o.AdvertiseHost = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1"
	o.Namespace, o.ShutdownDelay = system, 0
	return o
}

// runWebhook runs a webhook in this process and waits until it is ready. The webhook runs until
// stop is called or the test ends.
func (c *cluster) runWebhook(t testing.TB, options webhook.Options) (w *webhook.Webhook, stop func()) {
	t.Helper()
	c.makeNamespace(t, &v1.Namespace{ObjectMeta: named(system)})
	return runWebhook(t, c.Config, options)
}

func runWebhook(t testing.TB, config *rest.Config, options webhook.Options) (w *webhook.Webhook, stop func()) {
	t.Helper()
	w, err := webhook.New(config, options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the webhook ended with %v", err)
		}
	})
	t.Cleanup(stop)
	select {
	case <-w.Ready():
	case <-time.After(time.Minute):
		t.Fatalf("the webhook is not ready: %s", w.NotReady())
	}
	return w, stop
}

const patience = time.Minute

// eventually calls f until f returns nil, and fails the test after a timeout.
func eventually(t testing.TB, f func(context.Context) error) {
	t.Helper()
	var complaint error
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		if err := f(ctx); err != nil {
			if ctx.Err() == nil {
				complaint = err
			}
			return false, nil
		}
		return true, nil
	})
	if err != nil {
		t.Fatalf("after %v still: %v", patience, complaint)
	}
}
