package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// LoadPublic reads a chain and its key that no authority of ours has to have signed:
// those that the public API shows. It refuses a key that isn't the certificate's, dates
// that don't hold now, and a certificate that isn't for servers.
func LoadPublic(cert, key string, now time.Time) (*tls.Certificate, error) {
	pair, err := loadPair(cert, key)
	if err != nil {
		return nil, err
	}
	err = checkDates(pair.Leaf, now)
	if err == nil {
		err = checkPublicUse(pair.Leaf)
	}
	if err != nil {
		return nil, fmt.Errorf("load certificate %s: %w", cert, err)
	}
	return pair, nil
}

func loadPair(cert, key string) (*tls.Certificate, error) {
	pair, err := readPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("load certificate %s with key %s: %w", cert, key, err)
	}
	if pair.Leaf == nil {
		return nil, fmt.Errorf("load certificate %s: no certificate in it", cert)
	}
	return &pair, nil
}

func readPair(cert, key string) (tls.Certificate, error) {
	certPEM, err := readFile(cert)
	if err != nil {
		return tls.Certificate{}, err
	}
	keyPEM, err := readFile(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(certPEM, keyPEM)
}

// checkChain refuses a certificate that peers who trust the file ca would refuse. The
// error does not change with the time, so that the same one can be told from another.
func checkChain(pair *tls.Certificate, roots *x509.CertPool, ca string, now time.Time) error {
	if err := checkDates(pair.Leaf, now); err != nil {
		return err
	}
	between := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("its chain: %w", err)
		}
		between.AddCert(c)
	}
	for _, u := range nodeUses {
		if err := checkUse(pair.Leaf, x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now}, u, ca); err != nil {
			return err
		}
	}
	return nil
}

// use is an extended key usage and its name in RFC 5280, section 4.2.1.12.
type use struct {
	usage x509.ExtKeyUsage
	name  string
}

// nodeUses are what a node's certificate must be for: a node both calls and is called.
var nodeUses = [...]use{{x509.ExtKeyUsageServerAuth, "serverAuth"}, {x509.ExtKeyUsageClientAuth, "clientAuth"}}

// checkUse refuses a certificate that has no chain for this use.
func checkUse(leaf *x509.Certificate, options x509.VerifyOptions, u use, ca string) error {
	options.KeyUsages = []x509.ExtKeyUsage{u.usage}
	_, err := leaf.Verify(options)
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return fmt.Errorf("no authority in %s that is valid now has signed it", ca)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("its chain to %s: %w", ca, checkDates(invalid.Cert, options.CurrentTime))
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return fmt.Errorf("it or its chain to %s is not for %s, a node's must be for both serverAuth and clientAuth (extended key usage)", ca, u.name)
	case err != nil:
		return fmt.Errorf("its chain to %s: %w", ca, err)
	}
	return nil
}

// checkPublicUse refuses a certificate that names its uses and not that of a server.
func checkPublicUse(c *x509.Certificate) error {
	free := len(c.ExtKeyUsage) == 0 && len(c.UnknownExtKeyUsage) == 0
	if free || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth) || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny) {
		return nil
	}
	return errors.New("it is not for serverAuth (extended key usage), clients would refuse it")
}

// checkDates refuses a certificate that isn't valid yet or no longer.
func checkDates(c *x509.Certificate, now time.Time) error {
	switch {
	case now.Before(c.NotBefore):
		return fmt.Errorf("it is not valid before %s; is this machine's clock right?", c.NotBefore.UTC().Format(time.RFC3339))
	case now.After(c.NotAfter):
		return fmt.Errorf("it has ended: it was valid until %s", c.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}
