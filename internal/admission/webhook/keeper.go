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

	"github.com/berth-k8s/berth/internal/ask"
)

const (
	// How often certificates and configurations are looked at without a reason.
	keepPeriod = time.Minute
	// How soon again after a failure, as another replica's write in between, or after a write.
	keepRetry = time.Second
	// How long one look may take.
	keepLimit = 20 * time.Second
)

// keepCertificates keeps the certificates fresh and the configurations trusting them until ctx
// ends. It checks when one of them is changed, and periodically. Every replica does so: whichever
// is first to find something to do does it, and the others find it done.
func (w *Webhook) keepCertificates(ctx context.Context) {
	logger := klog.FromContext(ctx)
	touched := w.watchObjects(ctx)
	// A certificate with a short life has to be looked at more often.
	period := min(keepPeriod, w.options.CertificateLifetime/10)
	var pace ask.Pace
	for first := true; ; {
		wait, written := period, w.written
		err := w.renewNow(ctx, first)
		// Each write touches what is watched. If something else reverts it, or another replica
		// writes as well, the two must not drive each other.
		if err != nil || w.written > written {
			pace.Sent(w.clock.Now(), ask.Backoff{First: keepRetry, Last: period}, w.options.Service)
		}
		if err == nil {
			if first {
				logger.Info("Registered", "configurations", w.options.Service, "written", w.options.Register)
				close(w.ready)
			}
			first = false
		} else if wait = pace.Next.Sub(w.clock.Now()); ctx.Err() == nil {
			logger.Error(err, "Certificates or webhook configurations are not as they should be; trying again")
		}

		// The options' clock, so that tests can let months pass.
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

// renewNow does what is to be done now. The first time the configurations are written as a whole,
// and not before the webhook can answer; from then on only what went missing, so that replicas of
// two versions do not write by turns.
//
// The order is: the owner of what is made, the certificates, serving with them, and last the
// configurations, which make API servers call.
func (w *Webhook) renewNow(ctx context.Context, first bool) error {
	ctx, cancel := context.WithTimeout(ctx, keepLimit)
	defer cancel()
	// Each time, since the role may be made after the webhook.
	owners, err := w.ownerReferences(ctx)
	if err != nil {
		return err
	}

	certs, err := w.sharedCertificates(ctx, owners)
	if err != nil {
		return err
	}

	// Before the configurations: API servers must not be sent to a replica that has no certificate.
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

// ownerReferences of what the webhook makes: its own role, if there is one of its name. What takes
// the role away takes the rest along, and so an installation that is deleted leaves nothing behind,
// least of all a configuration that asks a webhook that is gone.
func (w *Webhook) ownerReferences(ctx context.Context) ([]metav1.OwnerReference, error) {
	role, err := w.client.RbacV1().ClusterRoles().Get(ctx, w.options.Service, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err): // it runs with other permissions than the manifests give
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("clusterrole %s: %w", w.options.Service, err)
	}
	return []metav1.OwnerReference{{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole", Name: role.Name, UID: role.UID}}, nil
}

// sharedCertificates returns the certificates that all replicas share, renewed if necessary. If two
// replicas renew at once, one is refused and takes the other's when it looks again, keepRetry
// later.
func (w *Webhook) sharedCertificates(ctx context.Context, owners []metav1.OwnerReference) (certificates, error) {
	secrets := w.client.CoreV1().Secrets(w.options.Namespace)
	secret, err := secrets.Get(ctx, w.options.Service, metav1.GetOptions{})
	isNew := apierrors.IsNotFound(err)
	if err != nil && !isNew {
		return certificates{}, fmt.Errorf("secret %s/%s: %w", w.options.Namespace, w.options.Service, err)
	}

	var current certificates
	if !isNew {
		// Somebody has changed it. New certificates are trusted as soon as the configurations have
		// the new bundle.
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

// keepMutating makes the mutating configuration right: all of it if it is to be written as a whole,
// else the CA bundle of Berth's own webhooks in it. Replicas of two versions would otherwise undo
// each other's changes for as long as a rollout lasts.
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

// keepOne makes a configuration if it may and there is none, and writes it if mend changes it. The
// write is on condition of the version that was read: of two replicas one is refused, and looks
// again.
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

	// From what is there, so that labels and webhooks that others have added stay.
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
// renewed the certificates, or somebody deleted a configuration. Signals that come together are
// one.
func (w *Webhook) watchObjects(ctx context.Context) <-chan struct{} {
	touched := make(chan struct{}, 1)
	touch := func(any) {
		select {
		case touched <- struct{}{}:
		default:
		}
	}
	// Only these objects by name, which the webhook's role need not exceed.
	factory := informers.NewSharedInformerFactoryWithOptions(w.client, 0, informers.WithNamespace(w.options.Namespace),
		informers.WithTweakListOptions(func(list *metav1.ListOptions) {
			list.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, w.options.Service).String()
		}))
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().Secrets().Informer(),
		factory.Admissionregistration().V1().MutatingWebhookConfigurations().Informer(),
		factory.Admissionregistration().V1().ValidatingWebhookConfigurations().Informer(),
	} {
		// It can only fail on an informer that has ended.
		_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: touch, UpdateFunc: func(_, _ any) { touch(nil) }, DeleteFunc: touch,
		})
	}
	factory.Start(ctx.Done())
	context.AfterFunc(ctx, factory.Shutdown)
	return touched
}
