"""The engine that checks answers: it knows no exercise. `regard.exercises` is what it reads."""
