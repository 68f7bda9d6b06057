"""A clinic: doctors, patients, visits, medicines, prescriptions."""

from __future__ import annotations

import datetime
import random
import sqlite3
from collections.abc import Iterator

from generators.question import Question
from generators.words import CITIES, day, full_names

__all__ = ["SCHEMA", "fill", "questions"]

SCHEMA = """
CREATE TABLE doctor (doctor_id INTEGER PRIMARY KEY, name TEXT NOT NULL, specialty TEXT NOT NULL,
    hired_year INTEGER NOT NULL);
CREATE TABLE patient (patient_id INTEGER PRIMARY KEY, name TEXT NOT NULL, born_on TEXT NOT NULL, city TEXT NOT NULL,
    insurer TEXT, phone TEXT);
CREATE TABLE visit (visit_id INTEGER PRIMARY KEY, patient_id INTEGER NOT NULL REFERENCES patient,
    doctor_id INTEGER NOT NULL REFERENCES doctor, visited_on TEXT NOT NULL, reason TEXT NOT NULL,
    fee INTEGER NOT NULL, paid_on TEXT);
CREATE TABLE medicine (medicine_id INTEGER PRIMARY KEY, name TEXT NOT NULL, form TEXT NOT NULL,
    unit_price REAL NOT NULL);
CREATE TABLE prescription (prescription_id INTEGER PRIMARY KEY, visit_id INTEGER NOT NULL REFERENCES visit,
    medicine_id INTEGER NOT NULL REFERENCES medicine, days INTEGER NOT NULL, doses_per_day INTEGER NOT NULL);
"""

SPECIALTIES = ("cardiology", "dermatology", "paediatrics", "orthopaedics", "neurology")
INSURERS = ("Alder Mutual", "Beacon Care", "Cedar Health")
REASONS = ("check-up", "pain", "rash", "injury", "follow-up")
FORMS = ("tablet", "syrup", "cream", "drops")
MEDICINES = (
    "Altovine", "Brezanol", "Cardexa", "Dolirem", "Eparin", "Fluvera", "Gastrix", "Hydrema", "Inhalor", "Junovax"
)  # fmt: skip
UNPAID = "A visit is unpaid while paid_on is NULL. A patient is uninsured when insurer is NULL."


def fill(database: sqlite3.Connection, rng: random.Random) -> None:
    """Fills the tables."""
    doctors = [
        (key, f"Dr {name}", SPECIALTIES[key % len(SPECIALTIES)], rng.randint(1990, 2022))
        for key, name in enumerate(full_names(rng, 14), 1)
    ]
    patients = [
        (
            key,
            name,
            day(rng, "1935-01-01", "2019-12-31"),
            rng.choice(CITIES),
            rng.choice((*INSURERS, None)),
            rng.choice((None, *[f"555-{rng.randint(1000, 9999)}"] * 4)),
        )
        for key, name in enumerate(full_names(rng, 60), 1)
    ]
    visits = []
    for key in range(1, 241):
        visited = datetime.date.fromisoformat(day(rng, "2022-01-01", "2024-05-31"))
        paid = None if rng.random() < 0.2 else str(visited + datetime.timedelta(days=rng.randint(0, 60)))
        reason, fee = rng.choice(REASONS), rng.randint(8, 60) * 5
        visits.append((key, rng.randint(1, 55), rng.randint(1, 13), str(visited), reason, fee, paid))
    medicines = [
        (key, name, FORMS[key % len(FORMS)], rng.randint(2, 40) * 0.25) for key, name in enumerate(MEDICINES, 1)
    ]
    prescriptions = [
        (key, rng.randint(1, 240), rng.randint(1, 9), rng.choice((5, 7, 10, 14, 28)), rng.randint(1, 4))
        for key in range(1, 181)
    ]
    for table, rows in (
        ("doctor", doctors),
        ("patient", patients),
        ("visit", visits),
        ("medicine", medicines),
        ("prescription", prescriptions),
    ):
        marks = ", ".join("?" * len(rows[0]))
        database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


def questions() -> Iterator[Question]:
    """Every question that can be asked of this database."""
    for specialty in SPECIALTIES:
        yield Question(
            f"Which doctors work in {specialty}?",
            f"SELECT name FROM doctor WHERE specialty = '{specialty}'",
            f"SELECT doctor_id, name FROM doctor WHERE specialty = '{specialty}'",
        )
        yield Question(
            f"How many different patients have visited a doctor of {specialty}?",
            "SELECT COUNT(DISTINCT v.patient_id) FROM visit AS v JOIN doctor AS d ON d.doctor_id = v.doctor_id "
            f"WHERE d.specialty = '{specialty}'",
        )
        yield Question(
            f"What do the unpaid visits in {specialty} add up to in fees?",
            "SELECT SUM(v.fee) FROM visit AS v JOIN doctor AS d ON d.doctor_id = v.doctor_id "
            f"WHERE d.specialty = '{specialty}' AND v.paid_on IS NULL",
            instructions=UNPAID,
        )
        yield Question(
            f"For each doctor of {specialty} give the name and the total of fees, highest total first; ties by name.",
            "SELECT d.name, SUM(v.fee) AS total FROM doctor AS d JOIN visit AS v ON v.doctor_id = d.doctor_id "
            f"WHERE d.specialty = '{specialty}' GROUP BY d.doctor_id, d.name ORDER BY total DESC, d.name",
        )
        yield Question(
            f"Which medicines have been prescribed more than three times on visits in {specialty}?",
            "SELECT m.name FROM medicine AS m JOIN prescription AS p ON p.medicine_id = m.medicine_id JOIN visit AS v "
            "ON v.visit_id = p.visit_id JOIN doctor AS d ON d.doctor_id = v.doctor_id "
            f"WHERE d.specialty = '{specialty}' GROUP BY m.medicine_id, m.name HAVING COUNT(*) > 3",
            "SELECT m.medicine_id FROM medicine AS m JOIN prescription AS p ON p.medicine_id = m.medicine_id JOIN "
            "visit AS v ON v.visit_id = p.visit_id JOIN doctor AS d ON d.doctor_id = v.doctor_id "
            f"WHERE d.specialty = '{specialty}' GROUP BY m.medicine_id HAVING COUNT(*) > 3",
        )
    for city in CITIES:
        yield Question(
            f"List the names of the uninsured patients from {city} in alphabetical order.",
            f"SELECT name FROM patient WHERE city = '{city}' AND insurer IS NULL ORDER BY name",
            instructions=UNPAID,
        )
        yield Question(
            f"Which patients from {city} have never had a visit?",
            f"SELECT name FROM patient WHERE city = '{city}' AND patient_id NOT IN (SELECT patient_id FROM visit)",
            "SELECT p.patient_id FROM patient AS p LEFT JOIN visit AS v ON v.patient_id = p.patient_id "
            f"WHERE p.city = '{city}' AND v.visit_id IS NULL",
        )
        yield Question(
            f"Who is the oldest patient from {city}, and when was this patient born? Give name and date.",
            f"SELECT name, born_on FROM patient WHERE city = '{city}' ORDER BY born_on, name LIMIT 1",
        )
        yield Question(
            f"How many visits were there by patients from {city} for each reason? Give reason and number.",
            "SELECT v.reason, COUNT(*) FROM visit AS v JOIN patient AS p ON p.patient_id = v.patient_id "
            f"WHERE p.city = '{city}' GROUP BY v.reason",
        )
    for insurer in INSURERS:
        for reason in REASONS:
            yield Question(
                f"What is the average fee of visits for '{reason}' by patients insured with {insurer}?",
                "SELECT AVG(v.fee) FROM visit AS v JOIN patient AS p ON p.patient_id = v.patient_id "
                f"WHERE p.insurer = '{insurer}' AND v.reason = '{reason}'",
            )
        yield Question(
            f"Which patients insured with {insurer} have paid more than 800 in fees? Give name and sum.",
            "SELECT p.name, SUM(v.fee) FROM patient AS p JOIN visit AS v ON v.patient_id = p.patient_id "
            f"WHERE p.insurer = '{insurer}' AND v.paid_on IS NOT NULL GROUP BY p.patient_id, p.name "
            "HAVING SUM(v.fee) > 800",
            instructions="Only visits that have been paid count.",
        )
    for medicine in MEDICINES:
        yield Question(
            f"How many doses of {medicine} have been prescribed in all?",
            "SELECT SUM(p.days * p.doses_per_day) FROM prescription AS p JOIN medicine AS m ON "
            f"m.medicine_id = p.medicine_id WHERE m.name = '{medicine}'",
            instructions="The doses of a prescription are its days times its doses a day.",
        )
        yield Question(
            f"Which doctor has prescribed {medicine} most often? Give the name; ties by name.",
            "SELECT d.name FROM doctor AS d JOIN visit AS v ON v.doctor_id = d.doctor_id JOIN prescription AS p ON "
            "p.visit_id = v.visit_id JOIN medicine AS m ON m.medicine_id = p.medicine_id "
            f"WHERE m.name = '{medicine}' GROUP BY d.doctor_id, d.name ORDER BY COUNT(*) DESC, d.name LIMIT 1",
        )
    for fee in (240, 260, 280):
        yield Question(
            f"Which doctors have never charged more than {fee} for a visit? Leave out doctors without visits.",
            "SELECT d.name FROM doctor AS d JOIN visit AS v ON v.doctor_id = d.doctor_id "
            f"GROUP BY d.doctor_id, d.name HAVING MAX(v.fee) <= {fee}",
            "SELECT d.doctor_id FROM doctor AS d JOIN visit AS v ON v.doctor_id = d.doctor_id "
            f"GROUP BY d.doctor_id HAVING MAX(v.fee) <= {fee}",
        )
