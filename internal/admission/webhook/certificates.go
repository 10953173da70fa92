// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
)

// certificates holds the CAs, the oldest first, and the serving certificate. All replicas share
// them. The values are immutable; renewIfDue returns new ones.
//
// A rotation with a serving certificate of 90 days proceeds as follows. A CA is valid for 720 days.
// After 480 days, a second CA is created and trusted as well, but it does not sign for an hour.
// After that, it signs the serving certificates. The first CA is dropped when it has expired.
type certificates struct {
	authorities []keyPair // not empty after renewIfDue
	serving     keyPair
}

// keyPair is a certificate with its key. The zero value means no certificate.
type keyPair struct {
	cert *x509.Certificate // nil: no certificate
	key  *ecdsa.PrivateKey
}

// validity is the lifetime of certificates. All other times derive from it.
type validity struct {
	// serving is the lifetime of the serving certificate, which is renewed after two thirds of that
	// time.
	serving time.Duration
}

// authorityLife returns the lifetime of a CA. It is much longer than the lifetime of serving
// certificates, so that the CA changes rarely.
func (v validity) authorityLife() time.Duration { return 8 * v.serving }

// settlingTime returns the time for distributing a CA before it signs, since each API server
// receives the CA by a watch. With the default lifetime it is an hour; with a lifetime of a few
// seconds, as in tests, it is a tenth of the lifetime.
func (v validity) settlingTime() time.Duration { return min(time.Hour, v.serving/10) }

// skew is the maximum lag of the clocks of API servers. Certificates begin that much in the past.
const skew = 5 * time.Minute

// renewIfDue returns the certificates to use now for these names, and reports whether they changed.
// An old CA gets a successor, which signs only after it has been trusted for a while. The old CA is
// trusted until it expires, so that an API server never encounters an untrusted certificate.
// Whether a renewal is due depends only on the arguments, so replicas with the same names agree on
// it.
func (c certificates) renewIfDue(names []string, v validity, now time.Time) (certificates, bool, error) {
	next := certificates{serving: c.serving}
	for _, authority := range c.authorities {
		if now.Before(authority.cert.NotAfter) {
			next.authorities = append(next.authorities, authority)
		}
	}

	changed := len(next.authorities) != len(c.authorities)
	// Only the newest CA counts, because older ones already have a successor.
	if n := len(next.authorities); n == 0 || isOld(next.authorities[n-1].cert, now) {
		authority, err := newAuthority(v.authorityLife(), now)
		if err != nil {
			return c, false, err
		}
		next.authorities, changed = append(next.authorities, authority), true
	}

	// This also applies if names were added, or if the signing CA has expired.
	if !next.servesNames(names, now) {
		serving, err := next.currentSigner(v, now).signServing(next.withPresent(names, now), v.serving, now)
		if err != nil {
			return c, false, err
		}
		next.serving, changed = serving, true
	}
	return next, changed, nil
}

// mostNames bounds the names of a certificate.
const mostNames = 64

// withPresent adds the names of the present certificate to those of this replica. Replicas with
// different names share the certificate; otherwise each of them would renew it for its own names.
// The renewal of an old certificate starts with the names of this replica, so that unused names
// disappear.
func (c certificates) withPresent(names []string, now time.Time) []string {
	cert := c.serving.cert
	if cert == nil || isOld(cert, now) {
		return names
	}
	all := slices.Concat(names, cert.DNSNames)
	for _, ip := range cert.IPAddresses {
		all = append(all, ip.String())
	}
	seen := map[string]bool{}
	all = slices.DeleteFunc(all, func(name string) bool {
		again := seen[name]
		seen[name] = true
		return again
	})
	return all[:max(len(names), min(len(all), mostNames))]
}

// servesNames reports whether the serving certificate remains usable for the names: more than a
// third of its life remains, and one of the CAs has signed it.
func (c certificates) servesNames(names []string, now time.Time) bool {
	cert := c.serving.cert
	if cert == nil || now.Before(cert.NotBefore) || isOld(cert, now) ||
		slices.ContainsFunc(names, func(name string) bool { return cert.VerifyHostname(name) != nil }) {
		return false
	}
	return slices.ContainsFunc(c.authorities, func(a keyPair) bool { return cert.CheckSignatureFrom(a.cert) == nil })
}

// currentSigner returns the newest CA whose settling time has passed. If there is none, as in a new
// installation, it returns the oldest CA, which then signs immediately.
func (c certificates) currentSigner(v validity, now time.Time) keyPair {
	for _, authority := range slices.Backward(c.authorities) {
		if now.Sub(authority.cert.NotBefore) >= skew+v.settlingTime() {
			return authority
		}
	}
	return c.authorities[0]
}

// isOld reports whether two thirds of the certificate's life have passed.
func isOld(cert *x509.Certificate, now time.Time) bool {
	life := cert.NotAfter.Sub(cert.NotBefore.Add(skew))
	return !now.Before(cert.NotAfter.Add(-life / 3))
}

// newAuthority creates a self-signed CA.
func newAuthority(life time.Duration, now time.Time) (keyPair, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "berth-webhook-ca"},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	return issueCertificate(template, keyPair{}, life, now)
}

// signServing creates a serving certificate for the names, signed by k.
func (k keyPair) signServing(names []string, life time.Duration, now time.Time) (keyPair, error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: names[0]},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return issueCertificate(template, k, life, now)
}

// issueCertificate creates a key and its certificate. Without a parent, the certificate is
// self-signed.
func issueCertificate(template *x509.Certificate, parent keyPair, life time.Duration, now time.Time) (keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, fmt.Errorf("generate a key: %w", err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return keyPair{}, fmt.Errorf("generate a serial number: %w", err)
	}

	// The certificate begins in the past, because the clocks of API servers may lag.
	template.NotBefore, template.NotAfter = now.Add(-skew), now.Add(life)
	if parent.cert == nil {
		parent = keyPair{template, key}
	}

	der, err := x509.CreateCertificate(rand.Reader, template, parent.cert, key.Public(), parent.key)
	if err != nil {
		return keyPair{}, fmt.Errorf("generate a certificate: %w", err)
	}

	cert, err := x509.ParseCertificate(der)
	return keyPair{cert, key}, err
}

// The keys of the Secret. The first two hold the certificates and the keys of all CAs, concatenated
// in the same order.
const (
	authoritiesKey    = "ca.crt"
	authorityKeysKey  = "ca.key"
	servingKey        = "tls.crt"
	servingPrivateKey = "tls.key"
)

// caBundle returns the CA bundle for API servers.
func (c certificates) caBundle() []byte {
	var all []byte
	for _, authority := range c.authorities {
		all = append(all, encodePEM("CERTIFICATE", authority.cert.Raw)...)
	}
	return all
}

// tlsCertificate returns the serving certificate for package tls.
func (c certificates) tlsCertificate() *tls.Certificate {
	return &tls.Certificate{Certificate: [][]byte{c.serving.cert.Raw}, PrivateKey: c.serving.key, Leaf: c.serving.cert}
}

// secretData returns the content of the Secret.
func (c certificates) secretData() (map[string][]byte, error) {
	var keys []byte
	for _, authority := range c.authorities {
		der, err := x509.MarshalECPrivateKey(authority.key)
		if err != nil {
			return nil, err
		}
		keys = append(keys, encodePEM("EC PRIVATE KEY", der)...)
	}
	der, err := x509.MarshalECPrivateKey(c.serving.key)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		authoritiesKey: c.caBundle(), authorityKeysKey: keys,
		servingKey: encodePEM("CERTIFICATE", c.serving.cert.Raw), servingPrivateKey: encodePEM("EC PRIVATE KEY", der),
	}, nil
}

// parseCertificates is the inverse of secretData. If it fails, new certificates must be created.
func parseCertificates(data map[string][]byte) (certificates, error) {
	authorities, err := parsePairs(data[authoritiesKey], data[authorityKeysKey])
	if err != nil {
		return certificates{}, fmt.Errorf("%s and %s: %w", authoritiesKey, authorityKeysKey, err)
	}
	serving, err := parsePairs(data[servingKey], data[servingPrivateKey])
	if err != nil || len(serving) != 1 {
		return certificates{}, fmt.Errorf("%s and %s: %w", servingKey, servingPrivateKey, errors.Join(err, errNotOne))
	}
	return certificates{authorities, serving[0]}, nil
}

// errNotOne reports a Secret without exactly one serving certificate.
var errNotOne = errors.New("must be one certificate and its key")

// parsePairs parses certificates and their keys in the same order. It returns an error if a key
// does not belong to its certificate, because TLS handshakes with it would fail.
func parsePairs(certs, keys []byte) ([]keyPair, error) {
	var pairs []keyPair
	for {
		var cert, key *pem.Block
		cert, certs = pem.Decode(certs)
		key, keys = pem.Decode(keys)
		if cert == nil && key == nil {
			return pairs, nil
		}
		if cert == nil || key == nil {
			return nil, errors.New("not as many keys as certificates")
		}

		parsed, err := x509.ParseCertificate(cert.Bytes)
		if err != nil {
			return nil, err
		}

		private, err := x509.ParseECPrivateKey(key.Bytes)
		if err != nil {
			return nil, err
		}
		if !private.PublicKey.Equal(parsed.PublicKey) {
			return nil, errors.New("the key does not belong to the certificate")
		}
		pairs = append(pairs, keyPair{parsed, private})
	}
}

// encodePEM wraps a DER encoding.
func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
