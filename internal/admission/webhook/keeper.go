// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/pacing"
)

const (
	// Interval between checks of certificates and configurations without a trigger.
	keepPeriod = time.Minute
	// Delay before the next check after a failure, such as a conflicting write of another replica,
	// or after a write.
	keepRetry = time.Second
	// Time limit of one check.
	keepLimit = 20 * time.Second
)

// keepCertificates keeps the certificates valid, and the configurations up to date with them, until
// ctx ends. It checks when one of them changes, and periodically. Every replica does so: the first
// replica to find a due task performs it, and the others find it done.
func (w *Webhook) keepCertificates(ctx context.Context) {
	logger := klog.FromContext(ctx)
	touched := w.watchObjects(ctx)
	// A certificate with a short life requires more frequent checks.
	period := min(keepPeriod, w.options.CertificateLifetime/10)
	var pace pacing.Pace
	for first := true; ; {
		wait, written := period, w.written
		err := w.renewNow(ctx, first)
		// Each write triggers the replica's own watch. If another writer reverts the write, or
		// another replica writes as well, they must not trigger each other endlessly.
		if err != nil || w.written > written {
			pace.Sent(w.clock.Now(), pacing.Backoff{First: keepRetry, Last: period}, w.options.Service)
		}
		if err == nil {
			if first {
				logger.Info("Registered", "configurations", w.options.Service, "written", w.options.Register)
				close(w.ready)
			}
			first = false
		} else if wait = pace.Next.Sub(w.clock.Now()); ctx.Err() == nil {
			logger.Error(err, "Could not update certificates or webhook configurations, will try again")
		}

		// Use the options' clock, so that tests can advance months.
		timer := w.clock.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-touched:
			if wait := pace.Next.Sub(w.clock.Now()); wait > 0 {
				timer.Stop()
				timer = w.clock.NewTimer(wait)
				select {
				case <-ctx.Done():
				case <-timer.C():
				}
			}
		case <-timer.C():
		}

		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// renewNow performs all due tasks. The first time, after the caches are filled, it writes the
// configurations as a whole. Later it only creates missing configurations and corrects CA bundles,
// so that replicas of two versions do not write alternately.
//
// The order is: find the owner of the created objects, renew the certificates, serve with them, and
// finally write the configurations, which make API servers call the webhook.
func (w *Webhook) renewNow(ctx context.Context, first bool) error {
	ctx, cancel := context.WithTimeout(ctx, keepLimit)
	defer cancel()
	// Look up the owner each time, since the role may be created after the webhook.
	owners, err := w.ownerReferences(ctx)
	if err != nil {
		return err
	}

	certs, err := w.sharedCertificates(ctx, owners)
	if err != nil {
		return err
	}

	// Do this before writing the configurations: API servers must not call a replica without a
	// certificate.
	w.serving.Store(certs.tlsCertificate())
	w.metrics.expiry.Set(float64(certs.serving.cert.NotAfter.Unix()))
	select {
	case <-w.warm:
	case <-ctx.Done():
		return fmt.Errorf("caches are not filled: %w", ctx.Err())
	}

	if err := w.keepMutating(ctx, owners, certs.caBundle(), first); err != nil {
		return fmt.Errorf("mutating webhook configuration %s: %w", w.options.Service, err)
	}
	if err := w.keepValidating(ctx, owners, certs.caBundle(), first); err != nil {
		return fmt.Errorf("validating webhook configuration %s: %w", w.options.Service, err)
	}
	return nil
}

// ownerReferences returns the owner of the objects created by the webhook: the ClusterRole with the
// webhook's name, if it exists. Deleting the role deletes these objects. Uninstalling therefore
// leaves nothing behind, in particular no configuration for a deleted webhook.
func (w *Webhook) ownerReferences(ctx context.Context) ([]metav1.OwnerReference, error) {
	role, err := w.client.RbacV1().ClusterRoles().Get(ctx, w.options.Service, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err): // forbidden if the webhook's permissions differ from the manifests
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("clusterrole %s: %w", w.options.Service, err)
	}
	return []metav1.OwnerReference{{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole", Name: role.Name, UID: role.UID}}, nil
}

// sharedCertificates returns the certificates shared by all replicas, renewed if necessary. If two
// replicas renew concurrently, one of them gets a conflict and reads the other's certificates at
// its next check, keepRetry later.
func (w *Webhook) sharedCertificates(ctx context.Context, owners []metav1.OwnerReference) (certificates, error) {
	secrets := w.client.CoreV1().Secrets(w.options.Namespace)
	secret, err := secrets.Get(ctx, w.options.Service, metav1.GetOptions{})
	isNew := apierrors.IsNotFound(err)
	if err != nil && !isNew {
		return certificates{}, fmt.Errorf("secret %s/%s: %w", w.options.Namespace, w.options.Service, err)
	}

	var current certificates
	if !isNew {
		// If parsing fails, another client has modified the Secret. New certificates are then
		// trusted as soon as the configurations have the new bundle.
		if current, err = parseCertificates(secret.Data); err != nil {
			klog.FromContext(ctx).Error(err, "The Secret with the certificates cannot be read; making new ones",
				"secret", klog.KObj(secret))
			current = certificates{}
		}
	}

	certs, changed, err := current.renewIfDue(w.options.dnsNames(), validity{w.options.CertificateLifetime}, w.clock.Now())
	if err != nil || !changed {
		return certs, err
	}

	data, err := certs.secretData()
	if err != nil {
		return certificates{}, err
	}

	if isNew {
		secret = &corev1.Secret{ObjectMeta: w.options.objectMeta(owners), Type: corev1.SecretTypeOpaque, Data: data}
		_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
	} else {
		secret = secret.DeepCopy()
		secret.Data = data
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}

	if err != nil {
		return certificates{}, fmt.Errorf("secret %s/%s: %w", w.options.Namespace, w.options.Service, err)
	}
	w.written++
	w.metrics.renewals.Inc()
	klog.FromContext(ctx).Info("Certificates renewed", "secret", klog.KObj(secret), "until", certs.serving.cert.NotAfter)
	return certs, nil
}

// keepMutating corrects the mutating configuration: all of it if whole is set, and otherwise only
// the CA bundles of Berth's own webhooks. Without this restriction, replicas of two versions would
// undo each other's changes throughout a rollout.
func (w *Webhook) keepMutating(ctx context.Context, owners []metav1.OwnerReference, bundle []byte, whole bool) error {
	wanted := w.options.mutatingConfig(w.listenPort(), bundle)
	wanted.OwnerReferences = owners
	return keepOne(ctx, w.client.AdmissionregistrationV1().MutatingWebhookConfigurations(), wanted,
		w.options.Register, &w.written, func(next *mutating) {
			if w.options.Register && whole {
				next.Labels, next.OwnerReferences, next.Webhooks = wanted.Labels, wanted.OwnerReferences, wanted.Webhooks
			}
			for i := range next.Webhooks {
				setBundle(next.Webhooks[i].Name, &next.Webhooks[i].ClientConfig, bundle)
			}
		})
}

// keepValidating is keepMutating for the validating configuration.
func (w *Webhook) keepValidating(ctx context.Context, owners []metav1.OwnerReference, bundle []byte, whole bool) error {
	wanted := w.options.validatingConfig(w.listenPort(), bundle)
	wanted.OwnerReferences = owners
	return keepOne(ctx, w.client.AdmissionregistrationV1().ValidatingWebhookConfigurations(), wanted,
		w.options.Register, &w.written, func(next *validating) {
			if w.options.Register && whole {
				next.Labels, next.OwnerReferences, next.Webhooks = wanted.Labels, wanted.OwnerReferences, wanted.Webhooks
			}
			for i := range next.Webhooks {
				setBundle(next.Webhooks[i].Name, &next.Webhooks[i].ClientConfig, bundle)
			}
		})
}

type (
	mutating   = admissionregistrationv1.MutatingWebhookConfiguration
	validating = admissionregistrationv1.ValidatingWebhookConfiguration
)

// configurations is the API of one kind.
type configurations[C any] interface {
	Get(context.Context, string, metav1.GetOptions) (C, error)
	Create(context.Context, C, metav1.CreateOptions) (C, error)
	Update(context.Context, C, metav1.UpdateOptions) (C, error)
}

// keepOne creates the configuration if it is missing and make is set. It updates an existing
// configuration if mend changes it. The update is conditional on the resource version read: if two
// replicas update concurrently, one gets a conflict and retries at its next check.
func keepOne[C interface {
	metav1.Object
	DeepCopy() C
}](ctx context.Context, api configurations[C], wanted C, make bool, written *int, mend func(next C)) error {
	current, err := api.Get(ctx, wanted.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if !make {
			return nil
		}
		*written++
		_, err = api.Create(ctx, wanted, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}

	// Start from the existing object, to keep labels and webhooks added by other clients.
	next := current.DeepCopy()
	if mend(next); apiequality.Semantic.DeepEqual(current, next) {
		return nil
	}

	*written++
	_, err = api.Update(ctx, next, metav1.UpdateOptions{})
	return err
}

// setBundle sets the CA bundle of one of Berth's webhooks.
func setBundle(webhook string, client *admissionregistrationv1.WebhookClientConfig, bundle []byte) {
	if isOurs(webhook) && !bytes.Equal(client.CABundle, bundle) {
		client.CABundle = bundle
	}
}

// watchObjects signals every change of the Secret and the configurations: another replica may have
// renewed the certificates, or a user may have deleted a configuration. It coalesces pending
// signals.
func (w *Webhook) watchObjects(ctx context.Context) <-chan struct{} {
	touched := make(chan struct{}, 1)
	touch := func(any) { pacing.Signal(touched) }
	// Watch only these objects by name, so that the webhook's role need not permit more.
	factory := informers.NewSharedInformerFactoryWithOptions(w.client, 0, informers.WithNamespace(w.options.Namespace),
		informers.WithTweakListOptions(func(list *metav1.ListOptions) {
			list.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, w.options.Service).String()
		}))
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().Secrets().Informer(),
		factory.Admissionregistration().V1().MutatingWebhookConfigurations().Informer(),
		factory.Admissionregistration().V1().ValidatingWebhookConfigurations().Informer(),
	} {
		// AddEventHandler only fails on a stopped informer.
		_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: touch, UpdateFunc: func(_, _ any) { touch(nil) }, DeleteFunc: touch,
		})
	}
	factory.Start(ctx.Done())
	context.AfterFunc(ctx, factory.Shutdown)
	return touched
}
