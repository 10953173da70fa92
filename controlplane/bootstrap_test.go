// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestDefaultRolesTakeAsLongAsTheyTake verifies that a server creating the default roles slowly
// stays up, and that it ends if stopped meanwhile.
func TestDefaultRolesTakeAsLongAsTheyTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, tries := time.Now(), 0
		slow := func(until time.Duration) func(context.Context) error {
			return func(context.Context) error {
				tries++
				if time.Since(began) < until {
					return errors.New("busy")
				}
				return nil
			}
		}
		retryUntilDone(t.Context(), slow(5*time.Minute))
		if took := time.Since(began); took < 5*time.Minute || took > 5*time.Minute+bootstrapRetryMost || tries < 10 {
			t.Errorf("after %v and %d tries", took, tries)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		retryUntilDone(ctx, slow(24*time.Hour))
		if ctx.Err() == nil {
			t.Error("given up while the server runs")
		}
	})
}

// TestTheConfigurationOfAnEarlierGuardIsRemoved verifies that evictions are not sent to a webhook
// that no longer runs, and that configurations of other webhooks are kept.
func TestTheConfigurationOfAnEarlierGuardIsRemoved(t *testing.T) {
	outside := admissionregistrationv1.WebhookClientConfig{URL: new("https://127.0.0.1:40001/evict")}
	inside := admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "berth-system", Name: "berth-webhook"}}
	evictions := admissionregistrationv1.ValidatingWebhook{Name: "evictions.admission.berth.dev", ClientConfig: outside}
	service, other := evictions, evictions
	service.ClientConfig, other.Name = inside, "pods.example.com"
	for name, c := range map[string]struct {
		webhooks []admissionregistrationv1.ValidatingWebhook
		removed  bool
	}{
		"of a guard":                  {[]admissionregistrationv1.ValidatingWebhook{evictions}, true},
		"of a webhook in the cluster": {[]admissionregistrationv1.ValidatingWebhook{service}, false},
		"with another webhook":        {[]admissionregistrationv1.ValidatingWebhook{evictions, other}, false},
	} {
		client := fake.NewClientset(&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "berth-webhook", UID: "1"}, Webhooks: c.webhooks})
		for range 2 {
			if err := removeGuard(t.Context(), client); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		_, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "berth-webhook", metav1.GetOptions{})
		if apierrors.IsNotFound(err) != c.removed {
			t.Errorf("%s: %v", name, err)
		}
	}
}
